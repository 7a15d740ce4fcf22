"""A package that only an extra installs is missed in one line that names the extra."""

import subprocess
import sys

import pytest

# Python's import finds none of the packages that follow; the rest of the line is run.
WITHOUT = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
packages, program = set(sys.argv[1].split()), sys.argv[2]
sys.meta_path.insert(0, Nowhere())
exec(program)
"""


def run_without(packages, program):
    command = [sys.executable, "-c", WITHOUT, packages, program]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("package", "extra", "program"),
    [
        ("tensorboard", "train", "from aero.train.tensorboard import open_board; open_board('x')"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(package, extra, program):
    ended = run_without(package, program)
    assert ended.returncode != 0
    line = ended.stderr.splitlines()[-1]
    assert package in line and f"'aero-torch[{extra}]'" in line
