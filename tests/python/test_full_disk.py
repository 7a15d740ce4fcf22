"""Tests with a full disk leave the checkout as it was."""

from pathlib import Path

from .full_disk import run_with_limit

TESTS = Path(__file__).parents[1]


def test_a_module_that_is_imported_on_a_full_disk_leaves_no_truncated_bytecode(tmp_path):
    (tmp_path / "large.py").write_text("\n".join(f"x{n} = {n}" for n in range(999)))
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        leave_no_room(64)
        import large
        print(large.x998)
    """
    limited = run_with_limit(program, tmp_path)
    assert limited.stdout == "998\n", limited.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["large.py"]


def test_limits_on_files_are_set_in_such_a_child_alone():
    # A mutant's test has room for a gigabyte.
    allowed = {"python/full_disk.py", "python/test_full_disk.py", "mutants/warm.py"}
    sources = [*TESTS.rglob("*.py"), *(TESTS.parent / "benchmarks").rglob("*.py")]
    limiting = {path for path in sources if "RLIMIT_FSIZE" in path.read_text(encoding="utf-8")}
    assert {path.relative_to(TESTS).as_posix() for path in limiting} <= allowed
