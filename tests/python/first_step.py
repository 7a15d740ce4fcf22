"""The files of aero that a newcomer reads from `aero train` to the first step, by running it.

    python -m tests.python.first_step

A file is entered when one of its functions runs for the command, not for an import. Prints the
number of them and of the files that are loaded, and their names.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import aero

ROOT = str(Path(aero.__file__).parent)


class FirstStep(BaseException):
    """Ends the training after its first step."""


def entered_files(arguments: list[str]) -> set[str]:
    """Runs a command of `aero` up to the first step of its training."""
    import transformers

    from aero.cli import app

    found: set[str] = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or name in found or not name.startswith(ROOT):
            return
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_name != "<module>":
            caller = caller.f_back
        if caller is None or not caller.f_code.co_filename.startswith(ROOT):
            found.add(name)

    step = transformers.Trainer.training_step

    def one_step(*args: Any, **kwargs: Any) -> None:
        step(*args, **kwargs)
        raise FirstStep

    transformers.Trainer.training_step = one_step  # type: ignore[method-assign]
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        app(arguments, standalone_mode=False)
    except FirstStep:
        return found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        transformers.Trainer.training_step = step  # type: ignore[method-assign]
    raise SystemExit("no step was taken")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number in range(20):
            (corpus / f"{number}.txt").write_text(f"{number} or not {number}? " * 40)
        settings = [
            "data.vocabulary=257",
            "model.preset=tiny",
            "model.context_length=16",
            "training.tokens=512",
            "training.tokens_per_step=128",
        ]
        places = ["--data", str(corpus), "--output", folder, "--cache-dir", f"{folder}/cache"]
        changes = [word for setting in settings for word in ("--set", setting)]
        entered = entered_files(["train", "--label", "SM+ScFuFFN", *places, *changes])
    files = (getattr(module, "__file__", None) or "" for module in [*sys.modules.values()])
    loaded = {file for file in files if file.startswith(ROOT)}
    print(len(entered), len(loaded | entered))
    for file in sorted(entered):
        print(Path(file).relative_to(ROOT))


if __name__ == "__main__":
    main()
