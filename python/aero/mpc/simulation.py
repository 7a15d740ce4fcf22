"""Computes the `CostReport` of a label or a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.families.values import REVEALED
from aero.internals.number_checks import plain, whole
from aero.mpc.cost import Cost, FieldValue, Operation, Stack
from aero.mpc.cost_report import CostReport
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.given_networks import given_network, is_folder, named_network
from aero.mpc.other_words import unknown_keyword
from aero.mpc.priced_network import PricedNetwork


def stack_names() -> list[str]:
    """Returns the names of the protocol stacks.

    Example:
        >>> from aero import mpc
        >>> mpc.stack_names()
        ['spu-2024', 'spu-0.9.5', 'openbumblebee', 'spu-semi2k', 'spu-aby3', 'spu-securenn']
    """
    return _core.stack_names()


def cheetah_stack_names() -> list[str]:
    """Those of `stack_names()` that run Cheetah between two parties without a dealer.

    Example:
        >>> from aero.mpc.simulation import cheetah_stack_names
        >>> cheetah_stack_names()
        ['spu-2024', 'spu-0.9.5', 'openbumblebee']
    """
    trust = Stack("spu-2024").trust
    return [name for name in _core.stack_names() if Stack(name).trust == trust]


def optimized_stack_names() -> list[str]:
    """`spu-2024` with several optimizations each; `simulate` takes them as `stack`.

    `aero-optimized` changes nothing in the function that is computed, `aero-optimized-generation`
    computes the next token's logits only, `aero-approximate` is off in the last bits besides.

    Example:
        >>> from aero.mpc.simulation import optimized_stack_names
        >>> optimized_stack_names()
        ['aero-optimized', 'aero-optimized-generation', 'aero-approximate']
    """
    return _core.optimized_stack_names()


def stack_fields(stack: str | Path | StackDescription) -> dict[str, FieldValue]:
    """Returns every field of a stack, as `simulate` takes it; each can be overridden there.

    Example:
        >>> from aero import mpc
        >>> mpc.stack_fields("openbumblebee")["exp_squarings"]
        5
    """
    return stack_description(stack).all_fields()


def simulate(
    label_or_model: Any,
    *,
    model: str = "gpt2",
    context_length: int | None = None,
    vocab_size: int | None = None,
    stack: str | Path | StackDescription = "spu-2024",
    **overrides: FieldValue,
) -> CostReport:
    """Computes the cost of one private forward pass over T tokens.

    Args:
        label_or_model: A label such as "SM+ScFuFFN_i6", a spec, or a preset under its published
            name ("gpt2-medium", "EleutherAI/pythia-160m"): `SM+LN+G` of that size, with Pythia's
            exact GELU. Or a network without label: a configuration or model of transformers, a
            name whose `config.json` is in Hugging Face's local cache, a folder with it or with the
            `network.json` of `aero.export_weights`, a run's folder, a described network
            (`aero.network`), or the program of any module:
            `torch.export.export(module, inputs)`, priced line by line.
        model: For a label, the preset that gives the sizes.
        context_length: T. Defaults to 128, to the spec's own for a spec.
        vocab_size: V. Defaults to the preset's or the spec's own.
        stack: A name of `stack_names()`, of an optimized stack ("aero-optimized", ...) or of
            another paper's ("sigma", "blb"), or the path of a description of your own.
        **overrides: Fields of the stack (`exp_squarings=5`, see `stack_fields`) and of the network
            (`num_heads=6`, `final_norm="layer"`, see `ArchitectureSpec`); a network without
            label has its sizes. `revealed_routing=True` lets both parties see which experts of a
            mixture a token takes.

    Raises:
        ValueError: Names the argument, its range and the given value; an unknown keyword with
            the nearest name; an operation of the network that has no price.

    Example:
        >>> from aero import mpc
        >>> baseline = mpc.simulate("SM+LN+G", final_norm="none")
        >>> round(baseline.comm_bytes / mpc.simulate("SM+ScFuFFN_i6").comm_bytes, 1)
        4.0

        A model's folder, or its configuration:

        >>> import json, pathlib, tempfile
        >>> sizes = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048,
        ...          "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
        ...          "intermediate_size": 5632, "max_position_embeddings": 2048}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (pathlib.Path(folder) / "config.json").write_text(json.dumps(sizes))
        ...     report = mpc.simulate(folder, stack="spu-0.9.5")
        >>> round(report.comm_bytes / 1e9), report.label, report.sizes["num_layers"]
        (74, 'llama', 22)
    """
    network, described, priced = network_on(
        label_or_model, model=model, context_length=context_length, vocab_size=vocab_size,
        stack=stack, **overrides,
    )  # fmt: skip
    return CostReport.of(network, described, priced, _core.simulate(network.core, priced))


def network_on(
    label_or_model: Any,
    *,
    model: str = "gpt2",
    context_length: int | None = None,
    vocab_size: int | None = None,
    stack: str | Path | StackDescription = "spu-2024",
    **overrides: FieldValue,
) -> tuple[PricedNetwork, StackDescription, Stack]:
    """What `simulate` prices, the stack as named, and with its fields; arguments as there."""
    described = stack_description(stack)
    network, fields = network_and_fields(
        label_or_model, model, context_length, vocab_size, described, overrides
    )
    return network, described, described.with_fields(fields)


def described_spec(spec: ArchitectureSpec, *, exact_gelu: bool = False) -> dict[str, Any]:
    """The description of a label's network, without weights: what decides its price."""
    return {
        "operations": _core.describe(spec, exact_gelu=exact_gelu).operations,
        "context_length": spec.context_length,
        "vocab_size": spec.vocab_size,
    }


def described_pass(
    operations: list[dict[str, Any]],
    *,
    rows: int,
    keys: int,
    sequences: int = 1,
    stack: str | Path | StackDescription = "spu-2024",
    **overrides: FieldValue,
) -> tuple[Operation, ...]:
    """The priced operations of one private pass of a described network over new tokens.

    They come after earlier ones, whose keys and values are kept.

    Args:
        operations: of a description, see `aero.network`; each token sees earlier ones alone.
        rows: tokens of each sequence that it reads.
        keys: tokens of each sequence so far, these included.
        sequences: side by side, of equal lengths.
        stack: As in `simulate`.
        **overrides: Fields of the stack.

    Raises:
        ValueError: Names the field, or the operation that has no price.
    """
    fields = [(name, plain_value(name, value)) for name, value in overrides.items()]
    priced = stack_description(stack).with_fields(fields)
    network = _core.Network(operations, keys)
    found = _core.simulate_pass(network, priced, batch=sequences, queries=rows, keys=keys)
    operations_of_pass: tuple[Operation, ...] = found["operations"]
    return operations_of_pass


def network_and_fields(
    label_or_model: Any,
    model: str,
    context_length: int | None,
    vocab_size: int | None,
    stack: StackDescription,
    overrides: dict[str, FieldValue],
) -> tuple[PricedNetwork, list[tuple[str, FieldValue]]]:
    """The network, and the overrides that are fields of the stack; arguments as of `simulate`."""
    revealed = overrides.get(REVEALED)
    overrides = {name: value for name, value in overrides.items() if name != REVEALED}
    stack_overrides, spec_overrides = _split(overrides, stack.base)
    if vocab_size is not None:
        spec_overrides["vocab_size"] = plain_value("vocab_size", vocab_size)
    if context_length is not None:
        spec_overrides["context_length"] = plain_value("context_length", context_length)
    is_label = isinstance(label_or_model, str) and not is_folder(label_or_model)
    if model != "gpt2" and not is_label:
        raise ValueError("simulate: model is for labels; the given network has its sizes")
    if revealed is not None and (is_label or isinstance(label_or_model, ArchitectureSpec)):
        raise ValueError(f"simulate: {REVEALED} is for mixtures of experts; a label has none")
    if is_label:
        spec_overrides.setdefault("context_length", 128)
        spec, preset, exact = named_network(label_or_model, model, **spec_overrides)
        network = PricedNetwork.of_spec(spec, preset, exact_gelu=exact)
    elif isinstance(label_or_model, ArchitectureSpec):
        spec = label_or_model.replace(**spec_overrides) if spec_overrides else label_or_model
        network = PricedNetwork.of_spec(spec, None)
    else:
        sizes = [spec_overrides.pop(name, None) for name in ("context_length", "vocab_size")]
        for name in spec_overrides:
            raise ValueError(
                f"simulate: {name} is for labels; the given network has its own, change that"
            )
        network = given_network(label_or_model, *sizes, revealed=revealed)
    return network, list((network.fields_on(stack) | stack_overrides).items())


_SPEC_FIELDS = tuple(ArchitectureSpec.from_label("SM").to_dict())
_OWN_KEYWORDS = ("model", "context_length", "vocab_size", "stack", REVEALED)


def plain_value(name: str, value: object) -> FieldValue:
    """A Python bool, int, float or str; numbers of other libraries become int or float."""
    found = plain(value)
    if not isinstance(found, bool | int | float | str):
        raise ValueError(
            f"simulate: {name} must be a bool, a number or a str, got {type(value).__name__}"
        )
    return found


def _split(
    overrides: dict[str, FieldValue], stack: str
) -> tuple[dict[str, FieldValue], dict[str, FieldValue]]:
    """Overrides of the stack and of the network."""
    stack_names = Stack(stack).fields
    for name in overrides:
        if name not in stack_names and name not in _SPEC_FIELDS:
            known = [*stack_names, *_SPEC_FIELDS, *_OWN_KEYWORDS]
            raise unknown_keyword("simulate", name, known)
    plain = {name: plain_value(name, value) for name, value in overrides.items()}
    return (
        {name: value for name, value in plain.items() if name in stack_names},
        {name: value for name, value in plain.items() if name not in stack_names},
    )


def operation_cost(
    name: str,
    *sizes: int,
    stack: str | Path | StackDescription = "spu-2024",
    **overrides: FieldValue,
) -> Cost:
    """Computes the mean cost of one operation over many runs: bytes need not be whole.

    Args:
        name: A part of a network, with the price of a description that has one: `setup`
            (no size); `truncation`, `rotary` (two of them), `argmax` (elements); `softmax` (rows,
            columns); `embedding` (tokens, vocabulary, width); `weight_product` (rows, inner,
            columns: the weight as the stack has it, truncated); `head_product` (heads, rows, inner,
            columns: shares times shares, truncated); `elementwise_product` (elements: the same of
            equal shapes, such as the gate of a SwiGLU), `weight_scaling` (elements, each by a
            weight); `layernorm`, `rmsnorm`, `plain_layernorm`, `plain_rmsnorm` (rows, width; plain:
            without a gain); the functions `relu`, `leaky_relu`, `relu_squared`, `gelu`, `silu`,
            `tanh`, `logistic`, `exp`, `reciprocal`, `reciprocal_square_root`, `soft_cap`,
            `dynamic_tanh`, `dynamic_erf`, `one_hot`, `masked` (elements).
            Without a price of its own there: `top_k` (rows, columns, chosen ones).
            The parts of those: `product`, `square`, `private_product`, `multiplexer` (elements);
            `comparison`, `equality` (elements, bits); `matmul` (rows, inner, columns: shares times
            shares, no truncation), `plaintext_product` (the same, each party knows one factor).
        *sizes: The sizes in parentheses.
        stack: As in `simulate`.
        **overrides: Fields of the stack.

    Raises:
        ValueError: For an unknown name, stack or field, or sizes that do not fit.

    Example:
        >>> from aero import mpc
        >>> round(mpc.operation_cost("relu", 128 * 3072).comm_bytes / 1e6, 2)
        39.74
    """
    fields = [(field, plain_value(field, value)) for field, value in overrides.items()]
    for size in sizes:
        if whole(size) is None:
            raise ValueError(f"operation_cost: sizes of {name} must be integers, got {size!r}")
    return _core.operation_cost(name, list(sizes), stack_description(stack).with_fields(fields))
