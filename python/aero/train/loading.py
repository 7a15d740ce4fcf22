"""Loading networks from files that may be damaged, without the bars of `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from aero.train.errors import TrainingError

__all__ = ["loading_from"]


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
