"""Loading networks from files that may be damaged, without the bars of `transformers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from aero.internals.atomic_files import CHECKSUM_FILE, damage
from aero.internals.errors import TrainingError
from aero.models import AeroForCausalLM
from aero.reading import UnreadableFileError, library_errors, printable, read_json, shown

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# The sizes of a configuration, in the words of GPT-2, Pythia and ours.
_LAYERS = ("num_layers", "num_hidden_layers", "n_layer")
_WIDTHS = (
    "width", "hidden_width", "head_dim", "num_heads", "vocab_size", "hidden_size", "n_embd",
    "intermediate_size", "n_inner", "num_attention_heads", "n_head",
)  # fmt: skip
# Values of `model_type`; None where a file says nothing.
_WITH_AERO_FORM = (None, "aero", "gpt2", "gpt_neox")
_CONFIG = {
    "model_type?": str | None,
    "architectures?": ([str], None),
    **{f"{name}?": int | None for name in (*_LAYERS, *_WIDTHS)},
}


def load_saved_network(
    path: str | Path, *, as_it_is: bool = False, **options: Any
) -> PreTrainedModel:
    """Loads a network with all of its weights, after a look at its files.

    Args:
        path: a folder, or a name on the hub; of those `transformers` shows how far downloads are.
        as_it_is: whether to load any causal language model as its own class, without its dropout,
            which is a matter of training; else an AERO, GPT-2 or Pythia as an `AeroForCausalLM`.
        **options: of `from_pretrained`.

    Raises:
        TrainingError: files are missing, damaged, pickles or of another network, or weights are
            missing, which `transformers` would replace by random ones.
    """
    require_whole_network(path)
    if not as_it_is:
        require_supported(path)
    try:
        _check_files(Path(path))
        with _without_bars(path), library_errors(path, "a network"):
            options |= {"output_loading_info": True, "use_safetensors": True}
            load = _load_as_it_is if as_it_is else AeroForCausalLM.from_pretrained
            loaded: Any = load(path, **options)
    except UnreadableFileError as error:
        raise TrainingError(f"{printable(str(path))} cannot be loaded: {error}") from error
    model, found = loaded
    missing = sorted({*found["missing_keys"], *(entry[0] for entry in found["mismatched_keys"])})
    if missing:
        raise TrainingError(
            f"{printable(str(path))} cannot be loaded: expected all weights of the network, got "
            f"none for {len(missing)} of them, such as {shown(missing[0])}"
        )
    network: PreTrainedModel = model
    return network


def load_decoder(path: str | Path) -> PreTrainedModel:
    """Loads an AERO, GPT-2 or Pythia as an `AeroForCausalLM`, any other decoder as it is, float32.

    Args:
        path: a folder, or a name on the hub.

    Raises:
        TrainingError: as of `load_saved_network`.
    """
    here = Path(path).is_dir()
    if (_kind(path) if here else _kind_on_the_hub(path)) in _WITH_AERO_FORM:
        return load_saved_network(path)
    options: dict[str, Any] = {"as_it_is": True, "dtype": torch.float32, "local_files_only": here}
    return load_saved_network(path, **options)


def require_supported(path: str | Path, *, others: Sequence[str] = ()) -> None:
    """Raises `TrainingError` where a folder's `config.json` names a kind that has no AERO form.

    Args:
        path: the folder.
        others: further kinds that the command takes, as `model_type` has them.
    """
    kind = _kind(path)
    if kind not in (*_WITH_AERO_FORM, *others):
        more = f", or of {', '.join(others)}" if others else ""
        raise TrainingError(
            f"{printable(str(path))}: expected a network of AERO, GPT-2 or Pythia{more}, got "
            f"{shown(kind)}, which this command does not support; aero.entropies(model, ids) "
            "and aero show work with it"
        )


def _kind(path: str | Path) -> Any:
    file = Path(path) / "config.json"
    if not file.is_file():
        return None
    return read_json(file, {"model_type?": str | None}, finite=False).get("model_type")


def _kind_on_the_hub(name: str | Path) -> Any:
    from transformers import AutoConfig

    try:
        with library_errors(name, "a network"):
            return AutoConfig.from_pretrained(str(name), trust_remote_code=False).model_type
    except UnreadableFileError as error:
        raise TrainingError(
            f"{shown(str(name))} is neither a folder with a network nor reachable on the hub"
        ) from error


def _load_as_it_is(path: str | Path, **options: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    # Else transformers asks on the terminal whether to run code that the folder holds.
    options = {"local_files_only": True, **options, "trust_remote_code": False}
    places = {name: options[name] for name in ("trust_remote_code", "local_files_only")}
    config = AutoConfig.from_pretrained(path, **places)
    for name in ("attn_pdrop", "attention_dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return AutoModelForCausalLM.from_pretrained(path, config=config, **options)


def _check_files(folder: Path) -> None:
    """Refuses files that cannot be a network, before `transformers` makes room for them."""
    if not folder.is_dir():
        return
    config = read_json(folder / "config.json", _CONFIG, finite=False)
    for name in ("generation_config.json", "model.safetensors.index.json"):
        if (folder / name).exists():
            read_json(folder / name, finite=False)
    files = sorted(folder.glob("*.safetensors"))
    pickles = [file for pattern in _PICKLES for file in sorted(folder.glob(pattern))]
    if not files and pickles:
        raise UnreadableFileError(
            f"{printable(str(pickles[0]))}: expected weights as safetensors, got a pickle, which "
            "can run code when it is read; where you trust it, load it with transformers and call "
            "save_pretrained(folder), which writes model.safetensors"
        )
    tensors, widest = 0, 0
    for file in files:
        with library_errors(file, "safetensors"), safe_open(file, framework="np") as stored:
            shapes = [stored.get_slice(name).get_shape() for name in stored.keys()]  # noqa: SIM118
        tensors += len(shapes)
        widest = max([widest, *(size for shape in shapes for size in shape)])
    widths = [name for name in _WIDTHS if name != "hidden_width" or _has_hidden_weights(config)]
    for names, most, what in (
        (_LAYERS, tensors, "the weights' number of tensors"),
        (widths, widest, "the weights' largest size"),
    ):
        for name in names:
            if files and (config.get(name) or 0) > most:
                raise UnreadableFileError(
                    f"{printable(str(folder / 'config.json'))}: {name}: expected at most {most}, "
                    f"{what}, got {config[name]}"
                )


def _has_hidden_weights(config: Mapping[str, Any]) -> bool:
    """True if a network of ours has weights of its hidden width: not of FFNs that it lost."""
    if config.get("annealed_from") is not None:  # still has those that it will lose
        return True
    pruned = config.get("num_pruned_ffns")
    all_pruned = pruned is not None and pruned == config.get("num_layers")
    return config.get("ffn") not in ("fused", "scaled_fused") and not all_pruned


@contextmanager
def _without_bars(path: str | Path) -> Iterator[None]:
    hides = Path(path).is_dir() and transformers_logging.is_progress_bar_enabled()
    if hides:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
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
