"""A disk that is full is said in one way, whoever noticed it."""

import resource

import pytest
import torch
from safetensors.torch import save_file

from aero.train.errors import TrainingError, disk_errors

WRITERS = {
    "plain": lambda path: path.write_bytes(bytes(400_000)),
    "torch": lambda path: torch.save(torch.zeros(100_000), path),
    "safetensors": lambda path: save_file({"a": torch.zeros(100_000)}, path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_named_with_its_folder_and_a_way_out(writer, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    message = f"convert: no space left in {tmp_path} while writing it; make room there and go on"
    try:
        with (
            pytest.raises(TrainingError, match=f"^{message}$"),
            disk_errors("it", tmp_path, "go on", command="convert"),
        ):
            WRITERS[writer](tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_has_nothing_to_do_with_disks_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes"), disk_errors("it", "/", "go on"):
        raise RuntimeError("shapes")
