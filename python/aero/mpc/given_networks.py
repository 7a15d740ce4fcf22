"""Networks without a label: configurations and models of transformers, folders, descriptions.

Objects are known by what they have, so that nothing here needs torch or transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.families.values import EXPORTED, REVEALED
from aero.mpc.priced_network import PricedNetwork
from aero.reading import UnreadableFileError, checked, printable, read_json, shown

if TYPE_CHECKING:
    from aero.families.sizes import Described

_DEFAULT_CONTEXT = 128
# The label of the presets that others published.
_PUBLISHED = "SM+LN+G"
# Who published the presets of a family; another owner's network of that name may have other sizes.
_OWNERS = {"gpt2": ("openai", "openai-community"), "pythia": ("eleutherai",)}
# The file of a described network, and how it begins; `aero.network` writes and checks it whole.
_DESCRIPTION, _FORMAT, _VERSION = "network.json", "aero-network", 2
_DESCRIBED = {"label": str, "context_length": int, "vocab_size": int, "operations": [dict]}
_CONFIGURATION = "config.json"
_ADAPTERS = "qkv/proj, ffn: adapters are priced as merged into the weights (merge_and_unload())"


def is_folder(given: object) -> bool:
    """Returns whether a text or a path is a folder of a network, or a name that is in the cache."""
    return isinstance(given, Path) or (
        isinstance(given, str)
        and (given.startswith((".", "/")) or _place(given) is not None)  # as no label does
    )


def _place(given: str | Path) -> Path | None:
    """Finds the network of a folder, of a run or of a name in the cache; None of all else."""
    folder = Path(given)
    if any((folder / name).is_file() for name in (_DESCRIPTION, _CONFIGURATION)):
        return folder
    if (folder / "run.json").is_file():
        return folder / "model"
    return _cached(given) if isinstance(given, str) else None


def _cached(name: str) -> Path | None:
    """What the local cache of Hugging Face has of a model's name; nothing asks the network."""
    if preset_named(name) or not ("/" in name or _core.names_a_model(name)):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, _CONFIGURATION)
    except (ImportError, ValueError):  # it is not installed, or no model is called so
        return None
    return Path(found).parent if isinstance(found, str) else None


def is_described(given: object) -> bool:
    """Returns whether a network is given by its description, as `aero export` writes it."""
    if isinstance(given, (str, Path)):
        return ((_place(given) or Path(given)) / _DESCRIPTION).is_file()
    return _description_of(given) is not None


def _description_of(given: object) -> Mapping[str, Any] | None:
    found = getattr(given, "description", given)
    return found if isinstance(found, Mapping) and "operations" in found else None


def preset_named(given: object) -> str | None:
    """The preset of a name such as "gpt2" or "EleutherAI/pythia-160m-deduped"; None of all else."""
    if not isinstance(given, str):
        return None
    owner, _, name = given.lower().rpartition("/")
    name = name.removesuffix("-deduped")
    owners = next((known for family, known in _OWNERS.items() if name.startswith(family)), ())
    known = name in ArchitectureSpec.preset_names() and owner in ("", *owners)
    return name if known else None


class Named(NamedTuple):
    """A network by its label or its published name; `preset` is the one that its sizes are of."""

    spec: ArchitectureSpec
    preset: str
    exact_gelu: bool


def named_network(name: str, model: str, **sizes: Any) -> Named:
    """The network of a label at the sizes of the preset `model`, or of a published name at its own.

    Args:
        name: A label, or what `preset_named` knows.
        model: The preset of a label.
        **sizes: Single sizes instead of the preset's.
    """
    preset = preset_named(name)
    if model not in ("gpt2", preset or model):
        raise ValueError(f"simulate: model must be {preset} for {name}, got {model}")
    label = name if preset is None else _PUBLISHED
    spec = ArchitectureSpec.from_label(label, model=preset or model, **sizes)
    return Named(spec, preset or model, preset is not None and spec.family == "pythia")


def given_network(
    given: object, context_length: Any = None, vocab_size: Any = None, *, revealed: Any = None
) -> PricedNetwork:
    """The network of anything that `simulate` takes but a label and a spec.

    Args:
        given: A folder, also of a run, a name in the local cache of Hugging Face, a configuration
            or model of transformers, or a described network.
        context_length: T; None: 128, or all positions of a model that has fewer.
        vocab_size: V; None: the model's own.
        revealed: Both parties see which experts a token takes.

    Raises:
        ValueError: It is none of these, or a part of it has no description.
    """
    for name, size in (("context_length", context_length), ("vocab_size", vocab_size)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
            raise ValueError(f"simulate: {name} must be an integer, got {size!r}")
    if isinstance(given, (str, Path)):
        place = _place(given) or Path(given)
        found = given_network(_read(place), context_length, vocab_size, revealed=revealed)
        if Path(given) in (place, *place.parents):
            return found
        told = f"sizes: from {printable(str(place / _CONFIGURATION))} in Hugging Face's local cache"
        return replace(found, notes=(told, *found.notes))
    # A model that was converted in place has its host's configuration too.
    config: Any = getattr(given, "aero_config", None) or getattr(given, "config", given)
    description = _description_of(given)
    if description is not None:
        if revealed is not None:
            raise ValueError(f"simulate: {REVEALED} is for configurations of mixtures of experts")
        return _of_description(description, context_length, vocab_size)
    if isinstance(config, Mapping) and "model_type" in config:
        return _of_configuration(config, revealed, context_length, vocab_size)
    if hasattr(given, "graph_signature") and hasattr(given, "graph_module"):
        return _of_program(given, context_length, vocab_size)
    if hasattr(config, "model_type") and callable(getattr(config, "to_dict", None)):
        read = config.to_dict()
        if config is not given:  # a model, whose class tells its head
            read = {**read, "architectures": [type(given).__name__]}
        notes = [_ADAPTERS] if hasattr(given, "peft_config") else []
        return _of_configuration(read, revealed, context_length, vocab_size, *notes)
    way_out = ""
    if hasattr(given, "named_parameters"):
        way_out = "; any other module is priced by its program: torch.export.export(module, inputs)"
    raise ValueError(
        "simulate: label_or_model must be a label, an ArchitectureSpec, a folder with network.json "
        "or config.json, a configuration or a model of transformers, a described network, or an "
        f"exported program, got {type(given).__name__}{way_out}"
    )


def is_exported(given: Any) -> bool:
    """True of a model that `aero export` writes: of such a family, without scaled rotations."""
    if is_folder(given):
        given = _read(_place(given) or Path(given))
    config = getattr(given, "config", given)
    config = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(config, Mapping) or config.get("model_type") not in EXPORTED:
        return False
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return bool(rope.get("rope_type", rope.get("type", "default")) == "default")


def _read(folder: Path) -> dict[str, Any]:
    if (folder / _DESCRIPTION).is_file():
        path = folder / _DESCRIPTION
        found = read_json(path, {"format": str, "version": int})
        if (found["format"], found["version"]) != (_FORMAT, _VERSION):
            raise UnreadableFileError(
                f"{printable(str(path))}: expected an {_FORMAT} {_VERSION}, got "
                f"{shown(found['format'])} {found['version']}"
            )
        return dict(checked(found, _DESCRIBED, str(path)))
    if (folder / _CONFIGURATION).is_file():
        return dict(read_json(folder / _CONFIGURATION, {"model_type": str}))
    raise ValueError(
        f"simulate: {printable(str(folder))} must be a label, or a folder with {_DESCRIPTION} or "
        f"{_CONFIGURATION}"
    )


def _of_description(
    description: Mapping[str, Any], context_length: int | None, vocab_size: int | None
) -> PricedNetwork:
    checked(dict(description), _DESCRIBED, "simulate: a described network")
    if vocab_size not in (None, description["vocab_size"]):
        raise ValueError(
            f"simulate: vocab_size of a described network is its own, {description['vocab_size']}, "
            f"got {vocab_size}"
        )
    return _priced(
        str(description["label"]), description["operations"], description["context_length"],
        context_length,
    )  # fmt: skip


def _of_configuration(
    config: Mapping[str, Any], revealed: Any, context_length: int | None, vocab_size: int | None,
    *notes: str,
) -> PricedNetwork:  # fmt: skip
    given = {"vocab_size": vocab_size, REVEALED: revealed}
    changes = {name: value for name, value in given.items() if value is not None}
    if config["model_type"] == "aero":
        network = _of_aero({**config, **changes}, context_length)
    else:
        from aero.families.configurations import described  # no label needs the families

        network = _of_described(described(config, **changes), context_length, *notes)
    if revealed is not None and all(one["op"] != "route" for one in _flat(network.core.operations)):
        raise ValueError(
            f"simulate: {REVEALED} is for mixtures of experts; {config['model_type']} is none"
        )
    return network


def _of_program(program: Any, context_length: int | None, vocab_size: int | None) -> PricedNetwork:
    if vocab_size is not None:
        raise ValueError(
            f"simulate: vocab_size of an exported program is its own, got {vocab_size}"
        )
    from aero.families.traced import described_program

    return _of_described(described_program(program), context_length)


def _of_described(found: Described, context_length: int | None, *notes: str) -> PricedNetwork:
    if found.fixed and context_length not in (None, found.positions):
        raise ValueError(
            f"simulate: context_length of {found.family} is that of its inputs, "
            f"{found.positions}, got {context_length}"
        )
    length = found.positions if found.fixed else context_length
    return _priced(
        found.family, found.operations, found.positions, length, *found.unpriced, *notes,
        fixed=found.fixed,
    )  # fmt: skip


def _of_aero(config: Mapping[str, Any], context_length: int | None) -> PricedNetwork:
    """A configuration of this package: the fields of a spec, one under another name."""
    fields = ArchitectureSpec.from_label("SM").to_dict()
    names = {name: {"temperature": "attention_temperature"}.get(name, name) for name in fields}
    missing = [key for key in names.values() if key not in config]
    if missing:
        raise ValueError(f"configuration: {missing[0]} of aero must be given, got none")
    if config.get("gated_parts"):
        raise ValueError(
            "configuration: gated_parts of aero are of a network in the middle of a selection, "
            "which has no price yet; train it to the end"
        )
    spec = ArchitectureSpec.from_dict({name: config[key] for name, key in names.items()})
    if context_length is not None:
        spec = spec.replace(context_length=context_length)
    is_exact = spec.ffn == "gelu" and config.get("gelu_approximation") == "none"
    return PricedNetwork.of_spec(spec, None, exact_gelu=is_exact)


def _priced(
    label: str, operations: list[dict[str, Any]], positions: int, context_length: int | None,
    *unpriced: str, fixed: bool = False,
) -> PricedNetwork:  # fmt: skip
    length = min(_DEFAULT_CONTEXT, positions) if context_length is None else context_length
    core = _core.Network(operations, length)  # checks the operations
    every = [*_flat(operations)]
    functions = {one.get("function") for one in every}

    def largest(op: str, field: str) -> int:
        return max((one[field] for one in every if one["op"] == op), default=0)

    tables = [
        one["rows"] for one in every if one["op"] == "embed" and one["inputs"] != ["positions"]
    ]

    sizes = {
        "num_layers": sum(one.get("repeat", 0) for one in operations),
        "num_heads": largest("scores", "heads"),
        "width": largest("embed", "width"),
        "context_length": length,
        "vocab_size": max(tables, default=0),
    }
    return PricedNetwork(
        label=label,
        sizes=sizes,
        core=core,
        exact_gelu="gelu_erf" in functions,
        silu="silu" in functions,
        window=min(
            (one["window"] for one in every if one["op"] == "softmax" and one["window"]), default=0
        ),
        notes=unpriced,
        causal=not fixed and all(one["op"] != "pool" and one.get("causal", True) for one in every),
        positions=positions,
    )


def _flat(operations: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in operations:
        yield from entry["operations"] if "repeat" in entry else [entry]
