"""A package that only an extra installs is missed in one line that names the extra."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Python's import finds none of the packages that follow; the rest of the line is run.
WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in packages
        return None if hidden else self.finder.find_spec(name, path, target)
packages, program = set(sys.argv[1].split()), sys.argv[2]
sys.meta_path[:] = map(Without, sys.meta_path)
exec(program)
"""


def run_without(packages, program):
    # transformers asks for peft where it is there, and that for accelerate.
    command = [sys.executable, "-c", WITHOUT, f"{packages} peft", program]
    return subprocess.run(command, capture_output=True, text=True)


# A use of each package of an extra, with files in the working folder.
USES = {
    "tensorboard": ("train", "from aero.train.entropy_callback import open_board; open_board('x')"),
    "accelerate": ("train", "import aero.train.trainer"),
    "msgspec": ("train", "import aero.report.runs"),
    "scipy": ("report", "from aero.analysis.statistics import student_quantile as q; q(3, 0.025)"),
    "matplotlib": ("report", "from aero import mpc, report; report.to_html(mpc.simulate('SM'))"),
    "cryptography": (
        "private",
        "from pathlib import Path; import aero; aero.private.make_keys(Path('keys'))",
    ),
}


@pytest.mark.parametrize("package", USES)
def test_a_missing_extra_is_one_line_that_names_it(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extra, program = USES[package]
    ended = run_without(package, program)
    assert ended.returncode != 0
    line = ended.stderr.splitlines()[-1]
    assert package in line and f"'aero-torch[{extra}]'" in line


def test_the_command_line_shows_that_line_alone():
    program = (
        "from aero import cli; sys.argv = "
        "['aero', 'cost', 'show', 'SM', '--model', 'tiny', '--html', '/dev/null']; cli.main()"
    )
    ended = run_without("matplotlib", program)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("aero: ") and "'aero-torch[report]'" in line


def test_networks_and_costs_need_no_extra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = (
        "import aero, torch; from aero import cli\n"
        "for name in aero.__all__: getattr(aero, name)\n"
        "model = aero.AeroForCausalLM(aero.AeroConfig.from_label('EReg(SM(t))', model='tiny'))\n"
        "model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()\n"
        "aero.convert(model, 'SM(t)+ScFuFFN'); model.save_pretrained('saved')\n"
        "sys.argv = ['aero', 'export', 'saved', '--output', 'exported']\n"
        "try: cli.main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "sys.argv = ['aero', 'cost', 'compare', 'SM', 'SM+R']; cli.main()"
    )
    ended = run_without(" ".join(USES), program)
    assert ended.returncode == 0, ended.stderr


def test_the_extras_have_every_package_that_is_missed_by_name():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    core = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)[1]
    for package, (extra, _) in USES.items():
        listed = re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)[1]
        assert f'"{package}>=' in listed and f'"{package}>=' not in core
