"""Attention entropies and weights of any decoder that `transformers` or this library builds.

The operator never forms the weights: they are computed from its arguments, where asked for.

Letters: L layers, B batch, H heads, T tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from aero.models.causal_lm import AeroForCausalLM, whole
from aero.models.decoder import check_token_ids
from aero.models.hugging_face_models import computes_own_attention, refuse_own_attention
from aero.models.measured_entropies import RowEntropies
from aero.models.recorded_outputs import let_outputs_be_recorded
from aero.nn.linear import check_computable, in_mode
from aero.nn.visible_keys import AttentionCall, keys_by_layer, recorded_calls
from aero.ops import reference


def entropies(
    model: nn.Module, batch: Tensor | Mapping[str, Any], *, attention_maps: bool = False
) -> RowEntropies:
    """Measures the attention entropies of a model on a batch, with any attention implementation.

    The model computes in evaluation mode without gradients, with ``"aero_entropy"`` where it is not
    one of ours; mode and implementation are restored. Data-parallel, compiled and PEFT models are
    looked at from inside; adapters count.

    Args:
        model: an `AeroForCausalLM`, or any `transformers` decoder or encoder whose attention can be
            exchanged: GPT-2, GPT-NeoX, Llama, Mistral, Qwen2, OPT, BERT, ...
        batch: token ids [B, T], or the arguments of the model, such as a tokenizer's output.
            `attention_mask`, [B, T], says where padding is; positions are counted without it unless
            `position_ids` come along.
        attention_maps: also return the attention weights of every head, L B H T S numbers in
            float32, which the fused operator never forms; default: entropies alone. They are
            shares among the keys: what a sink takes, as in gpt-oss, is in no map.

    Returns:
        The entropies and their statistics.

    Raises:
        ValueError: the batch has no tokens or ids beyond the vocabulary (on a GPU torch's error),
            or the model cannot give its entropies (an encoder and a decoder in one, attention of
            its own, ...), with the alternative.

    Example:
        >>> import torch
        >>> from aero import entropies
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9))
        >>> found = entropies(model, torch.tensor([[1, 2, 3, 4]]))
        >>> found.layers[0].shape, found.summary().head_entropy.shape
        (torch.Size([1, 2, 4]), (2, 2))
        >>> found = entropies(model, torch.tensor([[1, 2, 3, 4]]), attention_maps=True)
        >>> found.attention_maps[0].shape  # of layer 0: batch, heads, queries, keys
        torch.Size([1, 2, 4, 4])
    """
    inner = _unwrapped(model)
    arguments = _arguments(inner, batch)
    with _measuring(inner), torch.no_grad(), recorded_calls() as calls:
        weights = _RecordedWeights(calls) if attention_maps else None
        with weights or nullcontext():
            outputs = _outputs(inner, arguments)
    layers = getattr(outputs, "attentions", None)
    if not layers or any(layer is None or layer.dim() != 3 for layer in layers):
        raise ValueError(
            f"entropies: {type(inner).__name__} returned no attention in every layer, so there is "
            "nothing to measure; take a decoder with softmax attention throughout"
        )
    keys = _visible_keys(calls, layers, arguments.get("attention_mask"))
    row_mask = (keys > 0).all(dim=0)
    hidden = ~row_mask.unsqueeze(1)
    return RowEntropies(
        layers=tuple(layer.masked_fill(hidden, torch.nan) for layer in layers),
        row_mask=row_mask,
        visible_keys=keys,
        temperatures=inner.head_temperatures() if isinstance(inner, AeroForCausalLM) else None,
        thresholds=_thresholds(inner),
        attention_maps=None if weights is None else weights.of_layers(len(layers), hidden),
    )


def without_adapters(operation: str, model: nn.Module) -> nn.Module:
    """The model inside a PEFT model, with its adapters; any other model itself.

    Raises:
        ValueError: the adapter learns a prompt, whose tokens only the PEFT model puts in.
    """
    if not hasattr(model, "active_peft_config") or not hasattr(model, "get_base_model"):
        return model
    adapter: Any = model.active_peft_config
    if adapter.is_prompt_learning:
        raise ValueError(
            f"{operation}: {adapter.peft_type.value} puts tokens before those of the batch, which "
            "is not supported; use adapters in the layers, such as LoRA"
        )
    base: nn.Module = model.get_base_model()  # type: ignore[operator]
    return base


def transformers_model(operation: str, model: Any) -> Any:
    """The model itself, which must be one of `transformers` that can give its entropies.

    Raises:
        ValueError: it is none, with the way out.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{operation}: model must be a transformers model or an AeroForCausalLM, got "
            f"{type(model).__name__}; {_way_out(operation, model)}"
        )
    check_computable(f"{operation}: {type(model).__name__}", model.dtype)
    if computes_own_attention(type(model)):
        refuse_own_attention(operation, type(model))
    return model


def _way_out(operation: str, model: Any) -> str:
    parts = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    inner = next((path for path, part in parts.items() if isinstance(part, PreTrainedModel)), None)
    if inner is not None:
        return f"give it the one inside, model.{inner}, and wrap that"
    with_penalty = operation == "with_entropy_penalty"
    if any(path.endswith("attn.c_attn") for path in parts):
        label = "EReg(SM+LN+G)" if with_penalty else "SM+LN+G"
        return f"aero.convert(model, {label!r}) makes one of nanoGPT"
    call = "call aero.ops.attention_entropy in its attention (is_causal=False for encoders)"
    then = "add aero.models.EntropyPenalty's term to the loss" if with_penalty else "use its second"
    return f"{call} and {then}"


def _unwrapped(model: Any) -> Any:
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        elif model is not (base := without_adapters("entropies", model)):
            model = base
        else:
            return transformers_model("entropies", model)


def _outputs(model: Any, arguments: dict[str, Any]) -> Any:
    let_outputs_be_recorded(model)
    try:
        return model(**arguments, output_attentions=True, use_cache=False, return_dict=True)
    except IndexError:
        ids, embeddings = arguments.get("input_ids"), model.get_input_embeddings()
        if ids is not None and isinstance(embeddings, nn.Embedding):
            check_token_ids("entropies", ids, embeddings.weight.shape[0])
        raise


def _arguments(model: Any, batch: Tensor | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(batch, Tensor | Mapping):
        raise ValueError(
            "entropies: batch must be token ids [B, T] or a mapping with input_ids, got "
            f"{type(batch).__name__}"
        )
    given = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
    arguments = {
        name: value.to(model.device) if isinstance(value, Tensor) else value
        for name, value in given.items()
        if name != "labels"
    }
    tokens = arguments.get("input_ids", arguments.get("inputs_embeds"))
    if tokens is None or tokens.dim() < 2 or tokens.shape[0] * tokens.shape[1] == 0:
        got = sorted(given) if tokens is None else list(tokens.shape)
        raise ValueError(
            f"entropies: batch must be token ids [B, T] or a mapping with input_ids, got {got}"
        )
    mask = arguments.get("attention_mask")
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if isinstance(mask, Tensor) and mask.dim() == 2 and takes_positions:
        # As generation counts them; a plain call would begin at the padding.
        arguments.setdefault("position_ids", (mask.bool().cumsum(dim=-1) - 1).clamp(min=0))
    return arguments


@contextmanager
def _measuring(model: Any) -> Iterator[None]:
    """Evaluation mode and an attention that gives entropies; both as before afterwards."""
    config = model.config
    before: Any = config._attn_implementation
    if config.sub_configs:
        parts = {key: getattr(config, key, None) for key in config.sub_configs}
        names = {key: part._attn_implementation for key, part in parts.items() if part is not None}
        before = {"": before, **names}
    try:
        model.set_attn_implementation("aero_entropy")
        with in_mode(model):
            yield
    finally:
        model.set_attn_implementation(before)


def _thresholds(model: Any) -> Any:
    if isinstance(model, AeroForCausalLM):
        return model.head_thresholds()
    penalty = getattr(model, "entropy_penalty", None)  # of with_entropy_penalty
    if penalty is None:
        return None
    return whole(penalty.threshold_bias).detach().float().cpu().numpy()


def _visible_keys(calls: list[AttentionCall], layers: Any, attention_mask: Any) -> Tensor:
    """The visible keys of every layer, [L, B, T]."""
    keys = keys_by_layer("entropies", calls, layers, attention_mask)
    if keys is None:
        batch, _, length = layers[0].shape
        causal = torch.arange(1, length + 1, device=layers[0].device)
        return causal.expand(len(layers), batch, length)
    return torch.stack(keys)


# The arguments of the operator that the weights depend on, besides q and k.
_SHAPING = (
    "temperature", "mask", "is_causal", "scale", "window_left", "window_right", "softcap", "bias",
    "alibi_slopes", "sinks",
)  # fmt: skip


class _RecordedWeights(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes the weights of every call of the operator besides the call itself.

    Args:
        layers: what `recorded_calls` fills, the layer that calls being the last.
    """

    def __init__(self, layers: list[AttentionCall]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layers = layers
        self._calls: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aero.attention_entropy.default:
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            if given.get("cu_seqlens_q") is not None:
                given = _in_rows(given, self._layers[-1].mask)
            self._calls.append(_weights(**given))
        return func(*args, **(kwargs or {}))

    def of_layers(self, count: int, hidden: Tensor) -> tuple[Tensor, ...]:
        """The weights, [B, H, T, S] per layer, NaN in rows of padding (`hidden`, [B, 1, T])."""
        if len(self._calls) != count:
            raise ValueError(
                f"entropies: attention_maps need one call of the operator in each of {count} "
                f"layers, got {len(self._calls)}; leave attention_maps out"
            )
        return tuple(maps.masked_fill(hidden.unsqueeze(-1), torch.nan) for maps in self._calls)


def _in_rows(given: dict[str, Any], mask: Any) -> dict[str, Any]:
    """The call of B rows of T tokens whose packed sequences `attend` put into one row of B T."""
    batch, _, _, length = mask.shape
    rows = {
        name: x.unflatten(2, (batch, length))[0].transpose(0, 1)
        for name in ("q", "k", "temperature")
        if (x := given.get(name)) is not None and x.dim() > 1
    }
    return {**given, **rows, "mask": mask.values()}


def _weights(q: Tensor, k: Tensor, **others: Any) -> Tensor:
    """The weights of one layer, [B, H, T, S], by the operator's own arguments."""
    q = q.to(torch.promote_types(q.dtype, torch.float32))  # the weights come in the dtype of q
    # Values of one at one key each give the weights back.
    ones = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
    given = {name: others[name] for name in _SHAPING if name in others}
    found, _, _ = reference.attention_entropy(q, k, ones, **given)
    return found.float()
