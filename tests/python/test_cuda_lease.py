"""The one command for a GPU machine that can be had for minutes, rehearsed without one.

Programs that only leave marks stand in for Python, nvcc and nvidia-smi, and clocks are too short.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDER = [
    "build", "contact", "awkward", "accuracy", "attention", "schemes", "memcheck", "training",
]  # fmt: skip
#: Files that may come back from the machine, and their bytes; bytes and letters that may go there.
FILES, FILE_BYTES, TREE_BYTES, LETTERS = 8, 16 << 20, 64 << 20, 2000
#: Notes what step a command is and what was known when it began, and does as that step's plan says.
PYTHON = """#!/bin/bash
case "$*" in
  *gpu_run.py*) echo "${IDENTITY:-}"; exit ;;
  *build_offline*) step=build ;;
  *--memcheck*) step=memcheck ;;
  *"--only awkward") step=awkward ;;
  *"--only test_accuracy and not awkward") step=accuracy ;;
  *"--only ceilings|attention/"*) step=attention ;;
  *"--only schemes|variants") step=schemes ;;
  *"--only step") step=training ;;
esac
echo $step >>"$PLANS/begun"
cp "$OUT/steps.jsonl" "$PLANS/$step.known"
echo "${AERO_GPU_IDENTITY:-}" >"$PLANS/$step.identity"
if [[ $step = build && ! -d build/offline/native ]]; then
  mkdir -p build/offline/native/aero
  echo compiled >build/offline/native/aero/libaero_ops.so
fi
[[ ! -f $PLANS/$step ]] || source "$PLANS/$step"
"""
NVCC = """#!/bin/bash
cat >build/first_contact <<'END'
#!/bin/bash
echo contact >>"$PLANS/begun"
cp "$OUT/steps.jsonl" "$PLANS/contact.known"
END
chmod +x build/first_contact
"""


class Machine:
    """A tree with the script, stand-ins for programs, and plans of what they do."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.out, self.plans = (folder / x for x in ("tree", "out", "plans"))
        self.programs = folder / "programs"
        for made in (self.tree / "tests" / "cuda", self.tree / "csrc", self.plans, self.programs):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "tests" / "cuda" / "lease.sh", self.tree / "tests" / "cuda")
        (self.tree / "csrc" / "source.cpp").write_text("// some\n")
        said = "#!/bin/bash\necho some GPU\n"
        for name, text in (("python3", PYTHON), ("nvcc", NVCC), ("nvidia-smi", said)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def plan(self, step: str, commands: str) -> None:
        (self.plans / step).write_text(commands)

    def run(self, seconds: float, least: float = 0, identity: str = "") -> int:
        """Runs the script; returns its exit status."""
        environment = {
            **os.environ,
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "OUT": str(self.out),
            "PLANS": str(self.plans),
            "LEASE_GRACE": "0",
            "LEASE_LEAST": str(least),
            "IDENTITY": identity,
        }
        command = ["bash", str(self.tree / "tests" / "cuda" / "lease.sh"), str(seconds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        print(done.stdout, done.stderr)
        assert not done.stderr
        return done.returncode

    def begun(self) -> list[str]:
        """What has begun since the last time that this was asked."""
        path = self.plans / "begun"
        found = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def outcomes(self) -> dict[str, str]:
        """The last that is known of each step."""
        lines = map(json.loads, (self.out / "steps.jsonl").read_text().splitlines())
        return {line["step"]: line["outcome"] for line in lines}

    def replace(self) -> None:
        """Gives the machine back: the next one has the tree and the files that came back."""
        came_back = list(self.out.iterdir())
        assert len(came_back) <= FILES
        assert all(re.fullmatch(r"[\w.-]+", path.name) and path.is_file() for path in came_back)
        shutil.rmtree(self.tree / "build")
        for path in came_back:
            path.chmod(0o444)
        shutil.copytree(self.out, self.tree / "build" / "lease")
        shutil.rmtree(self.out)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_steps_have_an_order_and_each_result_is_there_before_the_next_step(
    machine: Machine,
) -> None:
    assert machine.run(60) == 0
    assert machine.begun() == ORDER
    assert machine.outcomes() == dict.fromkeys(ORDER, "passed")
    for number, step in enumerate(ORDER):
        known = (machine.plans / f"{step}.known").read_text().splitlines()
        assert [json.loads(line)["step"] for line in known] == ORDER[:number]
    machine.replace()


def test_what_was_built_is_looked_at_once(machine: Machine) -> None:
    assert machine.run(60, identity='{"library": "1"}') == 0
    known = {step: (machine.plans / f"{step}.identity").read_text().strip() for step in ORDER[2:]}
    assert set(known.values()) == {'{"library": "1"}'}
    assert (machine.plans / "build.identity").read_text() == "\n"


def test_a_step_that_hangs_is_ended_with_all_that_it_began_and_the_next_ones_run(
    machine: Machine,
) -> None:
    leave_a_child = f"sleep 600 & echo $! >>{machine.plans}/children;"
    machine.plan("accuracy", f"{leave_a_child} wait")
    machine.plan("schemes", f"{leave_a_child} exit 1")
    assert machine.run(12) == 1
    assert machine.begun() == ORDER
    expected = dict.fromkeys(ORDER, "passed") | {"accuracy": "hung", "schemes": "failed"}
    assert machine.outcomes() == expected
    children = (machine.plans / "children").read_text().split()
    assert len(children) == 2
    for child in children:
        status = Path("/proc", child, "stat")
        assert not status.exists() or " Z " in status.read_text()


def test_a_clock_that_runs_out_ends_the_call_and_the_next_one_goes_on(machine: Machine) -> None:
    library = "build/offline/native/aero/libaero_ops.so"
    machine.plan("build", f"echo by the first machine >{library}")
    for step in ORDER[3:]:
        machine.plan(step, "sleep 30")
    assert machine.run(9) == 1
    assert machine.begun() == ORDER
    assert set(list(machine.outcomes().values())[3:]) == {"hung"}
    machine.replace()
    for step in ORDER[3:]:
        machine.plan(step, "")
    machine.plan("build", f"grep -q 'by the first machine' {library} || exit 1")
    assert machine.run(60) == 0
    assert all(path.stat().st_mode & 0o200 for path in machine.out.iterdir())
    assert machine.begun() == ["build", *ORDER[3:]]
    assert machine.outcomes() == dict.fromkeys(ORDER, "passed")


def test_in_a_short_call_first_steps_have_time_enough_and_the_last_ones_none(
    machine: Machine,
) -> None:
    for step in ORDER[2:]:
        machine.plan(step, "sleep 3")
    assert machine.run(8, least=4) == 3
    assert machine.begun() == ORDER[:5]
    assert list(machine.outcomes().values()) == [*["passed"] * 4, "hung"]


def test_without_any_time_nothing_begins(machine: Machine) -> None:
    assert machine.run(0) == 2
    assert machine.begun() == []


@pytest.mark.parametrize(("status", "first"), [(2, 2), (3, 3)])
def test_what_ran_out_of_its_time_goes_on_at_the_end_of_the_call(
    status: int, first: int, machine: Machine
) -> None:
    machine.plan("awkward", f"exit {status}")
    assert machine.run(60) == first
    assert machine.begun() == [*ORDER, "awkward"]
    machine.plan("awkward", f"(( $(wc -l <{machine.plans}/begun) > 2 )) || exit {status}")
    assert machine.run(60) == 0
    assert machine.begun() == ["build", "awkward", "awkward"]


def test_what_failed_is_tried_again_in_the_next_call_only(machine: Machine) -> None:
    machine.plan("attention", "exit 1")
    assert machine.run(60) == 1
    assert machine.begun() == ORDER
    assert machine.run(60) == 1
    assert machine.begun() == ["build", "attention"]


@pytest.mark.parametrize("changed", ["a source", "the library", "the GPU"])
def test_results_of_something_else_are_not_taken_for_results(
    changed: str, machine: Machine
) -> None:
    assert machine.run(60) == 0
    machine.begun()
    if changed == "a source":
        (machine.tree / "csrc" / "source.cpp").write_text("// another\n")
    elif changed == "the library":
        (machine.tree / "build" / "offline" / "native" / "aero" / "libaero_ops.so").write_text("2")
    else:
        (machine.programs / "nvidia-smi").write_text("#!/bin/bash\necho another GPU\n")
    assert machine.run(60) == 0
    assert machine.begun() == ORDER


def test_without_a_library_there_is_first_contact_only(machine: Machine) -> None:
    machine.plan("build", "exit 1")
    assert machine.run(60) == 1
    assert machine.begun() == ["build", "contact"]


def test_the_programs_themselves_take_what_the_script_says(tmp_path: Path) -> None:
    """On the CPU with few cases; only memcheck, which needs a GPU, proves nothing."""
    tree, out = tmp_path / "tree", tmp_path / "out"
    tree.mkdir()
    for name in ("tests", "benchmarks", "python"):
        (tree / name).symlink_to(ROOT / name)
    environment = {
        **os.environ, "OUT": str(out), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = ["bash", str(tree / "tests" / "cuda" / "lease.sh"), "1800", "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    lines = map(json.loads, (out / "steps.jsonl").read_text().splitlines())
    outcomes = {line["step"]: line["outcome"] for line in lines}
    assert outcomes == dict.fromkeys(ORDER[2:], "passed") | {"memcheck": "failed"}
    assert done.returncode == 1
    results = {path.stem: json.loads(path.read_text())["results"] for path in out.glob("*.json")}
    assert results.keys() == {"awkward", "accuracy", "memcheck", "benchmark"}
    assert len(list(out.iterdir())) < FILES  # one more may be in the middle of being written
    tests = {name: {key.partition("[")[0] for key in found} for name, found in results.items()}
    assert not tests["awkward"] & tests["accuracy"]
    assert all("test_accuracy.py" in key for key in tests["accuracy"] | tests["awkward"])
    kinds = {name.partition("/")[0] for name in results["benchmark"]}
    assert kinds == {"ceilings", "attention", "schemes", "variants", "step"}


def test_a_program_takes_the_identity_that_it_is_told(tmp_path: Path) -> None:
    script = (
        "import json, os, sys; sys.path.insert(0, 'benchmarks/cuda'); import gpu_run;"
        "print(json.dumps([gpu_run.prepared('cuda'), sys.path[0], os.environ['PYTHONPATH']]))"
    )
    environment = {
        **os.environ, "AERO_GPU_SITE": str(tmp_path), "AERO_GPU_IDENTITY": '{"library": "1"}',
        "PYTHONPATH": "before",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == [
        {"library": "1"}, str(tmp_path), f"{tmp_path}{os.pathsep}before",
    ]  # fmt: skip


@pytest.mark.parametrize("program", ["tests/cuda/run.py", "benchmarks/cuda/run.py"])
def test_a_program_starts_before_the_package_is_there(tmp_path: Path, program: str) -> None:
    """It builds the package itself, on a machine that has none."""
    lacking = "import sys\nsys.modules['aero'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(lacking)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(ROOT / program), "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--budget" in done.stdout


def test_the_command_and_what_travels_are_small_enough() -> None:
    manual = (ROOT / "kernels" / "cuda" / "README.md").read_text("utf-8")
    commands = re.findall(r"^    (.*bash tests/cuda/lease\.sh.*)$", manual, re.MULTILINE)
    assert commands
    assert all(len(command) < LETTERS for command in commands)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("not a checkout of git")
    paths = [ROOT / name for name in found.stdout.split("\0") if name]
    # Beside the sources travel the libraries, and the files that came back before.
    assert (
        sum(path.stat().st_size for path in paths if path.is_file()) < TREE_BYTES - 2 * FILE_BYTES
    )
