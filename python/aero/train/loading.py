"""Loading networks from files that may be damaged, without the bars of `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from aero.checksums import CHECKSUM_FILE, damage
from aero.train.errors import TrainingError

__all__ = ["loading_from", "require_whole_network"]


@contextmanager
def loading_from(path: str | Path) -> Iterator[None]:
    """Turns what goes wrong while a network is loaded into one error that names its folder.

    Args:
        path: the folder; for a name on the hub `transformers` still shows how far downloads are.

    Raises:
        TrainingError: the files are missing, damaged or of another network.

    Example:
        >>> from aero.models import AeroForCausalLM
        >>> try:
        ...     with loading_from("/nowhere"):
        ...         AeroForCausalLM.from_pretrained("/nowhere", local_files_only=True)
        ... except TrainingError as error:
        ...     print(str(error).partition(":")[0])
        /nowhere cannot be loaded
    """
    require_whole_network(path)
    hides = Path(path).is_dir() and transformers_logging.is_progress_bar_enabled()
    if hides:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise TrainingError(f"{path} cannot be loaded: {error}") from error
    finally:
        if hides:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def require_whole_network(path: str | Path) -> None:
    """Compares a network's files with their checksums, where it has any.

    Raises:
        TrainingError: a file is damaged, missing or without a checksum.
    """
    problems = damage(path) if (Path(path) / CHECKSUM_FILE).is_file() else []
    if problems:
        raise TrainingError(
            f"{path} cannot be loaded: {problems[0]}; restore it, or delete {CHECKSUM_FILE} if you "
            "changed the files yourself"
        )
