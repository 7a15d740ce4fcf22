"""A disk that is full is said in one way, whoever noticed it."""

from ..full_disk import run_with_limit

# Writes a file in three ways, and says how each failed.
WRITING = """
    import sys
    from pathlib import Path
    import torch
    from safetensors.torch import save_file
    from aero.internals.errors import TrainingError, disk_errors
    folder, zeros = Path(sys.argv[1]), torch.zeros(100_000)
    leave_no_room(60_000)
    for write in (
        lambda path: path.write_bytes(bytes(400_000)),
        lambda path: torch.save(zeros, path),
        lambda path: save_file({"a": zeros}, path),
    ):
        try:
            with disk_errors("it", folder, "go on", command="convert"):
                write(folder / "file")
        except TrainingError as error:
            print(error)
"""


def test_a_full_disk_is_named_with_its_folder_and_a_way_out(tmp_path):
    message = f"convert: no space left in {tmp_path} while writing it; make room there and go on"
    limited = run_with_limit(WRITING, tmp_path)
    assert limited.stdout.splitlines() == 3 * [message], limited.stderr
