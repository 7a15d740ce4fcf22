"""The program of a GPU machine, run here as far as it goes: no line of it meets a GPU unread.

`make test-cuda` and `make bench-cuda` on the CPU with small sizes, where streams and graphs have
stand-ins, and their judgements on output that only a GPU gives.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS, BENCHMARKS = ROOT / "tests" / "cuda", ROOT / "benchmarks" / "cuda"
#: What heads of 64 and of 128 are called in names of measurements.
OF = ("bfloat16", "bfloat16 D128")
SCRIPTS = [*TESTS.glob("*.py"), *BENCHMARKS.glob("*.py"), ROOT / "packaging" / "build_offline.py"]


@pytest.fixture(autouse=True)
def _scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (TESTS, BENCHMARKS, ROOT / "packaging"):
        monkeypatch.syspath_prepend(folder)


def run(*command: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    print(done.stdout[-6000:], done.stderr[-3000:])
    return done


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_parse_with_the_grammars_of_both_pythons(script: Path) -> None:
    for minor in (10, 12):
        ast.parse(script.read_text(), feature_version=(3, minor))


def test_the_tests_of_a_gpu_run_with_stand_ins(tmp_path: Path) -> None:
    results = tmp_path / "tests.json"
    options = ("--device", "cpu", "--stand-in", "--every", 60, "--results", results)
    done = run(TESTS / "run.py", *options)
    assert done.returncode == 0
    outcomes = {n: r["outcome"] for n, r in json.loads(results.read_text())["results"].items()}
    functions = {name.partition("[")[0].rpartition("::")[2] for name in outcomes}
    written = {
        node.name
        for path in TESTS.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert written <= functions
    assert "failed" not in outcomes.values()
    # Nothing of these can be known without a GPU.
    for tool in ("memcheck", "racecheck", "synccheck"):
        assert outcomes[f"compute-sanitizer {tool}"] == "not run"


def test_without_stand_ins_what_needs_a_gpu_is_not_run(tmp_path: Path) -> None:
    results = tmp_path / "tests.json"
    options = ("--device", "cpu", "--every", 60, "--only", "stream", "--results", results)
    run(TESTS / "run.py", *options)
    found = json.loads(results.read_text())["results"]
    assert found
    assert {result["outcome"] for result in found.values()} == {"not run"}


def test_the_benchmark_measures_everything_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    results = tmp_path / "benchmark.json"
    command = (BENCHMARKS / "run.py", "--device", "cpu", "--tiny", "--results", results)
    assert run(*command).returncode == 0
    first = json.loads(results.read_text())
    assert "running" not in first
    assert {result["outcome"] for result in first["results"].values()} == {"passed"}
    kinds = {name.partition("/")[0] for name in first["results"]}
    assert kinds == {"ceilings", "attention", "schemes", "variants", "listing", "flex", "step"}
    for name, result in first["results"].items():
        found = result["found"]
        if name.startswith(("attention", "schemes", "variants", "listing")):
            assert all(min(x["ms"]) > 0 for x in found.values()), name
    narrow, wide = (first["results"][f"attention/{x}/T512/both"]["found"]["ours"] for x in OF)
    assert wide["flops"] == 2 * narrow["flops"]
    kept = first["results"].pop("attention/bfloat16/T512/both")
    results.write_text(json.dumps(first))
    done = run(*command)
    second = json.loads(results.read_text())["results"]
    assert second.pop("attention/bfloat16/T512/both")["found"].keys() == kept["found"].keys()
    assert second == first["results"]  # none of them was measured again
    for text in (
        "forward + backward",
        "split / heads",
        "soft cap / plain",
        "share of the time without | - |",
        "| 4096 |",
        str(results),
    ):
        assert text in done.stdout


def test_what_has_no_time_left_is_named_and_not_begun(tmp_path: Path) -> None:
    from gpu_run import Record

    record = Record(tmp_path / "benchmark.json", {"library": "some"})
    record.write()
    options = ("--record", record.path, "--device", "cpu", "--until", 0)
    assert run(BENCHMARKS / "measure.py", *options).returncode == 0
    results = Record.reopened(record.path).results
    assert len(results) > 30
    expected = {"outcome": "not run", "message": "the time is used up"}
    assert all(result == expected for result in results.values())


def test_only_the_measurements_that_are_asked_for_are_made(tmp_path: Path) -> None:
    from gpu_run import Record

    record = Record(tmp_path / "benchmark.json", {"library": "some"})
    record.write()
    sizes = "attention/bfloat16( D128)?/T(512|1024|2048|4096)/"
    options = ("--record", record.path, "--device", "cpu", "--until", 0, "--only", sizes)
    assert run(BENCHMARKS / "measure.py", *options).returncode == 0
    assert sorted(Record.reopened(record.path).results) == sorted(
        f"attention/{of}/T{length}/{direction}"
        for of in OF
        for length in (512, 1024, 2048, 4096)
        for direction in ("forward", "both")
    )


def test_what_hangs_or_crashes_has_failed_and_the_others_go_on(tmp_path: Path) -> None:
    from gpu_run import DEVICE_LOST, Record, run_until_ended

    script = tmp_path / "script.py"
    script.write_text(
        f"import os, sys, time; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "from pathlib import Path; from gpu_run import Record\n"
        "record = Record.reopened(Path(sys.argv[1]))\n"
        "for name in ('right', 'crashes', 'loses the device', 'last'):\n"
        "    if name in record.results: continue\n"
        "    record.begin(name)\n"
        "    if name == 'crashes': os.abort()\n"
        "    record.add(name, {'outcome': 'passed', 'message': ''})\n"
        "    record.end()\n"
        f"    if name == 'loses the device': os._exit({DEVICE_LOST})\n"
    )
    record = Record(tmp_path / "record.json", {"library": "some"})
    record.write()
    run_until_ended([sys.executable, str(script), str(record.path)], record, lambda: 60)
    outcomes = {name: result["outcome"] for name, result in record.results.items()}
    assert outcomes == {
        "right": "passed", "crashes": "failed", "loses the device": "passed", "last": "passed",
    }  # fmt: skip

    script.write_text(script.read_text().replace("os.abort()", "time.sleep(600)"))
    record = Record(record.path, {"library": "another"})  # nothing of it is kept
    assert record.results == {}
    record.write()
    left = iter([1, -19, 60, 60])
    run_until_ended([sys.executable, str(script), str(record.path)], record, lambda: next(left, 60))
    assert record.results["crashes"]["message"] == "it did not end in its time"
    assert record.results["last"]["outcome"] == "passed"


def test_a_test_that_takes_its_process_down_is_tried_once_in_a_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gpu_run import Record, run_until_ended

    (tmp_path / "test_small.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "def begun(name):\n"
        "    with (Path(__file__).parent / 'begun').open('a') as file: print(name, file=file)\n"
        "def test_crashes(): begun('crashes'); os.abort()\n"
        "def test_loses_the_device():\n"
        "    import conftest\n"
        "    conftest.device_is_lost = lambda _: True\n"
        "    begun('loses')\n"
        "    assert False\n"
        "def test_goes_on(): begun('goes on')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    record = Record(tmp_path / "record.json", {"library": "some"})
    command = [sys.executable, "-m", "pytest", str(tmp_path), "-q", "-p", "conftest", "-p"]
    command += ["no:cacheprovider", "-c", os.devnull, "--device=cpu", f"--record={record.path}"]
    for call in (1, 2):  # a second call tries again what failed, as it may have been mended
        record.try_failures_again()
        run_until_ended(command, record, lambda: 60)
        assert [result["outcome"] for result in record.results.values()] == [
            "failed", "failed", "passed",
        ]  # fmt: skip
        begun = (tmp_path / "begun").read_text().splitlines()
        assert [begun.count(name) for name in ("crashes", "loses", "goes on")] == [call, call, 1]


@pytest.mark.parametrize(
    ("outcomes", "to_its_end", "status"),
    [
        ({"passed": ""}, True, 0),
        ({"passed": "", "not run": "needs a GPU"}, True, 0),
        ({"passed": "", "not run": "the tool does not know this CUDA runtime"}, True, 0),
        ({"passed": "", "not run": "it did not end in its time of 110 s"}, True, 2),
        ({"not run": "needs a GPU"}, True, 1),
        ({"passed": "", "failed": "wrong"}, True, 1),
        ({"passed": "", "not run": "the time is used up"}, True, 2),
        ({"passed": ""}, False, 2),
        ({"failed": "it did not end in its time"}, False, 3),
        ({}, False, 2),
        ({}, True, 1),
        ({"not run": "the time is used up"}, True, 2),
    ],
)
def test_the_exit_status_tells_a_failure_from_a_lack_of_time(
    outcomes: dict[str, str], to_its_end: bool, status: int
) -> None:
    from gpu_run import exit_status

    results = [{"outcome": outcome, "message": message} for outcome, message in outcomes.items()]
    assert exit_status(results, to_its_end=to_its_end) == status


CLEAN = (
    "========= COMPUTE-SANITIZER\nsanitized calls: all done\n========= ERROR SUMMARY: 0 errors\n"
)
SAID: list[tuple[str, int, str]] = [
    (CLEAN, 0, "passed"),
    (
        "========= COMPUTE-SANITIZER\nsanitized calls: all done\n"
        "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
        0,
        "passed",
    ),
    ("========= Invalid __global__ read of size 4 bytes\n" + CLEAN, 0, "failed"),
    ("========= Error: Race reported between Write access at run_pass\n" + CLEAN, 9, "failed"),
    ("========= Error: Device not supported. Please refer to the documentation\n", 1, "not run"),
    (
        '========= Program hit cudaErrorUnknown (error 999) due to "unknown error" on CUDA API '
        "call to cudaMalloc\n========= ERROR SUMMARY: 1 error\n",
        9,
        "not run",
    ),
    ("sanitized calls: all done\n", 0, "not run"),  # the tool said nothing
    ("========= ERROR SUMMARY: 0 errors\n", 0, "not run"),  # the calls did not get far
    (CLEAN, 1, "not run"),
]


@pytest.mark.parametrize(("output", "status", "outcome"), SAID)
def test_a_sanitizer_passes_only_if_it_watched_all_calls_and_found_nothing(
    output: str, status: int, outcome: str
) -> None:
    from sanitizers import verdict

    found = verdict(output, status)
    assert found["outcome"] == outcome
    assert (found["message"] == "") == (outcome == "passed")


def test_a_sanitizer_is_given_the_calls_and_its_words_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sanitizers

    tool = tmp_path / "compute-sanitizer"
    tool.write_text('#!/bin/sh\necho "$@"\necho "Invalid __global__ read at run_pass"\nexit 9\n')
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizers, "program", lambda: str(tool))
    found = sanitizers.sanitized("memcheck", "cuda", 60, "few")
    assert found["outcome"] == "failed"
    said = capsys.readouterr().out
    assert "--tool memcheck" in said
    assert "sanitized_calls.py cuda few\n" in said
    assert "read at run_pass" in said


@pytest.mark.parametrize("how_many", ["few", "all"])
def test_the_calls_for_the_sanitizers_work(how_many: str) -> None:
    done = run(TESTS / "sanitized_calls.py", "cpu", how_many)
    assert done.stdout.splitlines()[-1] == "sanitized calls: all done"


def test_the_few_calls_are_five_and_of_every_operator() -> None:
    import torch
    from sanitized_calls import few

    operators = [inputs.operator for inputs in few(torch.device("cpu"))]
    assert len(operators) == 5
    assert set(operators) == {
        "attention_entropy", "temperature_softmax", "entropy_regularization", "scaled_ffn",
    }  # fmt: skip


def test_the_kernels_without_entropy_can_be_made_from_those_with(tmp_path: Path) -> None:
    import without_entropy

    folder = without_entropy.without(tmp_path)
    for name in without_entropy.REPLACED:
        ours = (ROOT / "kernels" / name).read_text()
        assert (folder / "kernels" / name).read_text() != ours
