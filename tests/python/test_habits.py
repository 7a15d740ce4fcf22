"""Habits that machines hold: the subjects of commits, and what a pull request must pass."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIGURATION = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
HOOKS = {hook["id"]: hook for repository in CONFIGURATION["repos"] for hook in repository["hooks"]}


def judged(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What the hook says of a message, called as git calls it."""
    _, *program = shlex.split(HOOKS["commit-message"]["entry"])
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message, encoding="utf-8")
    command = [sys.executable, *program, str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    "message",
    [
        "loss: give a batch without targets a zero gradient\n",
        "ü" * 72 + "\n\nA body. Its lines end as they like.\n" + "x" * 100,
        "\n# a comment, of more than seventy-two characters, which git takes away again\ncli: x",
        "wheels: build for Python 3.15 ...and later",
        "Merge branch 'a-branch-with-a-name-that-is-longer-than-any-subject-should-ever-be'",
        "fixup! " + "x" * 72,
    ],
)  # fmt: skip
def test_a_subject_that_is_short_and_ends_without_a_full_stop_passes(
    message: str, tmp_path: Path
) -> None:
    done = judged(message, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("x" * 73, "73"),
        ("loss: mend it.\n\nWhy.\n", "full stop"),
        ("# nothing but a comment\n\n", "empty"),
        ("loss: mend it\nand this\n", "empty line"),
    ],
)
def test_any_other_subject_is_refused_in_one_line(message: str, named: str, tmp_path: Path) -> None:
    done = judged(message, tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("commit message: ") and named in line


def test_messages_are_judged_when_they_are_written_and_files_when_they_are_committed() -> None:
    stages = {
        name: hook.get("stages", CONFIGURATION["default_stages"]) for name, hook in HOOKS.items()
    }
    assert stages.pop("commit-message") == ["commit-msg"]
    assert stages and all(stage == ["pre-commit"] for stage in stages.values())
    assert {*CONFIGURATION["default_install_hook_types"]} == {"pre-commit", "commit-msg"}


def test_a_pull_request_runs_what_a_change_must_pass() -> None:
    text = (ROOT / ".github" / "workflows" / "pull_request.yml").read_text("utf-8")
    workflow: dict[Any, Any] = yaml.safe_load(text)
    assert "pull_request" in workflow[True]  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    (python,) = (
        s["with"]["python-version"] for s in job["steps"] if "setup-python" in s.get("uses", "")
    )
    assert python in {"3.10", "3.11"}  # the private environment needs one of them


def _docstrings(path: Path) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]


def test_no_docstring_opens_as_a_fragment_whose_beginning_is_the_name() -> None:
    sources = sorted((ROOT / "python" / "aero").rglob("*.py"))
    opening = re.compile(r"(?:Of|Whether)\b")
    found = [
        (path.relative_to(ROOT).as_posix(), text.splitlines()[0])
        for path in sources
        for text in _docstrings(path)
        if opening.match(text)
    ]
    assert len(sources) > 200
    assert found == []


def test_no_docstring_of_the_bindings_opens_so_either() -> None:
    sources = sorted((ROOT / "csrc" / "bindings").glob("*.cpp"))
    assert sources
    for path in sources:
        assert not re.findall(r'"(?:Of|Whether) .*', path.read_text("utf-8")), path.name
