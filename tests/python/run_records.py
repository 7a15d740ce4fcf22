"""The run.json of a small run."""

from typing import Any

from aero.architecture import ArchitectureSpec
from aero.internals.run_files import RunInfo


def run_info(status: str = "finished", label: str = "SM", **entries: Any) -> RunInfo:
    spec = ArchitectureSpec.from_label(label, model="tiny").to_dict()
    known = {"slug": "sm", "seed": 0, "spec": spec, "steps_done": 0, "steps_total": 20}
    return RunInfo(status=status, label=label, **{**known, **entries})
