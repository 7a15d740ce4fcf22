"""Attention and blocks to put into existing GPT-2 code, with the names of its state dicts.

A host is the code around them: ``"gpt2"`` is `transformers`' GPT-2 (weights [in, out], attention
returns a pair), ``"nanogpt"`` is nanoGPT and code like it (weights [out, in], attention returns its
output alone), ``"gpt_neox"`` is `transformers`' GPT-NeoX. Where a state dict lacks parameters that
only AERO has (temperatures, thresholds, alpha, beta), they keep their start; absent biases are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.nn.attention import CausalSelfAttention, KeyValueCache, SequenceContext
from aero.nn.block import Block, Norm, Residual
from aero.nn.feed_forward import FeedForward, FusedFeedForward
from aero.nn.temperature import Temperature
from aero.nn.weight_forms import set_weight_layout

Host = Literal["gpt2", "nanogpt", "gpt_neox"]

_OWN_PARAMETERS = ("alpha", "beta", "negative_slope", "entropy_threshold", "temperature.value")
# Before the name of an activation.
_MARK = "activation_"
# The causal mask that older checkpoints of both hosts hold as buffers of attention.
_MASK_BUFFERS = ("bias", "masked_bias")


class DropInAttention(CausalSelfAttention):
    """Replaces the attention of a GPT-2 block: `c_attn`, `c_proj`, and AERO's own parts.

    A state dict does not tell the host's dropout, so give it by name.

    Args:
        width: C.
        num_heads: H, a divisor of C.
        host: whose code calls it.
        temperature: None for 1.
        entropy_threshold: as in `CausalSelfAttention`.
        layer_index: this layer's place in the cache.
        dropout: the share of the output that training drops, `resid_dropout` of the hosts.
        attention_dropout: the share of the attention weights that training drops, `attn_pdrop` of
            GPT-2; the entropies are those without it.

    Attributes:
        entropy: row entropies of the latest forward, [B, H, T], nats, float32, with gradient; None
            before the first.

    Example:
        >>> import torch
        >>> from aero.nn import DropInAttention
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, attn_pdrop=0.0)
        >>> model = GPT2LMHeadModel(config)
        >>> attention = DropInAttention(8, 2)
        >>> attention.load_state_dict(model.transformer.h[0].attn.state_dict())
        <All keys matched successfully>
        >>> model.transformer.h[0].attn = attention
        >>> _ = model(torch.tensor([[1, 2, 3]]))
        >>> attention.entropy.shape
        torch.Size([1, 2, 3])
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        host: Host = "gpt2",
        temperature: Temperature | None = None,
        entropy_threshold: float | None = None,
        layer_index: int = 0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width,
            num_heads,
            temperature=temperature,
            entropy_threshold=entropy_threshold,
            layer_index=layer_index,
        )
        self.entropy: Tensor | None = None
        self.dropout = _checked_share(self, dropout)
        self.attention_dropout = _checked_share(self, attention_dropout, "attention_dropout")
        self.host = _settle(self, host)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, *positional: Any, **keywords: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Returns the output, [B, T, C]; for `transformers` a pair with the entropies, [B, H, T].

        Args:
            hidden_states: [B, T, C].
            *positional: further arguments of the host.
            **keywords: likewise: cache, mask, positions.
        """
        context = _host_context(hidden_states, *positional, **keywords)
        output, self.entropy = super().forward(hidden_states, context)
        if self.dropout > 0:
            output = F.dropout(output, self.dropout, self.training)
        return output if self.host == "nanogpt" else (output, self.entropy)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles go without the latest entropies."""
        return self.__dict__ | {"entropy": None}


class DropInBlock(Block):
    """Replaces a whole block of a host; without norms by default.

    Args:
        attn: the attention, with its place in the cache.
        mlp: the feed-forward, linear, scaled, fused or with an activation; None for a pruned one.
        ln_1: the norm before the attention.
        ln_2: the norm before the feed-forward.
        residual: as in `Block`.
        dropout: the share that training drops of what attention and feed-forward add to the stream,
            `resid_dropout` and `dropout` of the hosts.
        host: whose code calls it.

    Attributes:
        entropy: as in `DropInAttention`.

    Example:
        >>> import torch
        >>> from aero.nn import CausalSelfAttention, DropInBlock
        >>> from aero.nn import ScaledFeedForward
        >>> block = DropInBlock(CausalSelfAttention(8, 2), ScaledFeedForward(8, 32), host="nanogpt")
        >>> block(torch.zeros(1, 3, 8)).shape, block.entropy.shape
        (torch.Size([1, 3, 8]), torch.Size([1, 2, 3]))
    """

    def __init__(
        self,
        attn: CausalSelfAttention,
        mlp: FeedForward | FusedFeedForward | None,
        ln_1: Norm | None = None,
        ln_2: Norm | None = None,
        *,
        residual: Residual = "sequential",
        dropout: float = 0.0,
        host: Host = "gpt2",
    ) -> None:
        super().__init__(attn, mlp, ln_1, ln_2, residual=residual)
        self.entropy: Tensor | None = None
        # `transformers` sets both where it finds the first.
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Callable[..., Any] | None = None
        self.dropout = _checked_share(self, dropout)
        self.host = _settle(self, host)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, *positional: Any, **keywords: Any
    ) -> Tensor:
        """Returns the new stream, [B, T, C]; arguments as of `DropInAttention`."""
        context = _host_context(hidden_states, *positional, **keywords)
        run = super().forward
        if self.gradient_checkpointing and self.training:
            assert self._gradient_checkpointing_func is not None
            stream, self.entropy = self._gradient_checkpointing_func(run, hidden_states, context)
        else:
            stream, self.entropy = run(hidden_states, context)
        return stream  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles go without the latest entropies."""
        return self.__dict__ | {"entropy": None}


def mark_activation(block: DropInBlock) -> None:
    """Gives a feed-forward whose activation is not the host's a buffer that says so.

    Without it the host's own block would load such a state dict, and be another network.
    """
    if isinstance(block.mlp, FeedForward):
        name, device = f"{_MARK}{block.mlp.activation}", block.mlp.c_fc.bias.device
        block.mlp.register_buffer(name, torch.zeros(1, device=device))


def is_activation_mark(name: str) -> bool:
    """Returns whether an entry of a state dict is that of `mark_activation`."""
    return name.rpartition(".")[2].startswith(_MARK)


def _checked_share(module: nn.Module, dropout: float, name: str = "dropout") -> float:
    if not 0 <= dropout < 1:
        raise ValueError(
            f"{type(module).__name__}: {name} must be a number from 0 to below 1, got {dropout}"
        )
    return dropout


def _settle(module: nn.Module, host: Host) -> Host:
    """Gives a module the weight layout and the loading of its host."""
    if host not in ("gpt2", "nanogpt", "gpt_neox"):
        raise ValueError(
            f"{type(module).__name__}: host must be 'gpt2', 'nanogpt' or 'gpt_neox', got {host!r}"
        )
    # Projections apart are none of the hosts' layers, and square: only their layout would tell them
    # from those of `AeroForCausalLM`.
    is_split = any(getattr(part, "separate_projections", False) for part in module.modules())
    set_weight_layout(module, "in_out" if host == "gpt2" and not is_split else "out_in")
    module.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
        _complete_state
    )
    return host


def _complete_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Adds the parameters that a host's state dict lacks, and drops its mask buffers."""
    for name, parameter in module.named_parameters():
        given = state.get(prefix + name, parameter)
        if given.shape != parameter.shape and given.shape == parameter.shape[::-1]:
            raise ValueError(
                f"{type(module).__name__}: {prefix}{name} must be {list(parameter.shape)} with "
                f"host={module.host!r}, got its transpose {list(given.shape)}; "
                "'gpt2' has weights [in, out], 'nanogpt' and 'gpt_neox' [out, in]"
            )
        if name.endswith(_OWN_PARAMETERS):
            state.setdefault(prefix + name, parameter.detach())
        elif name.endswith(".bias") and f"{prefix}{name[:-4]}weight" in state:
            state.setdefault(prefix + name, torch.zeros_like(parameter))
    for name, buffer in module.named_buffers():
        if is_activation_mark(name):
            state.setdefault(prefix + name, buffer)
    attention = prefix if isinstance(module, CausalSelfAttention) else f"{prefix}attn."
    for name in _MASK_BUFFERS:
        state.pop(attention + name, None)


def _host_context(
    hidden_states: Tensor,
    cache: KeyValueCache | None = None,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    *,
    past_key_values: KeyValueCache | None = None,
    layer_past: KeyValueCache | None = None,
    position_ids: Tensor | None = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **unused: Any,
) -> SequenceContext:
    """A host's arguments about its sequences, in the order and names of `transformers`' layers.

    The cache has three names: `cache` from release 5.24 on, and two before. One under another name
    is an error, as keys and values of earlier tokens would be left out.
    """
    for name, value in unused.items():
        if hasattr(value, "get_seq_length"):
            raise ValueError(f"aero attention: cache must be called 'cache', got it as {name!r}")
    if encoder_hidden_states is not None:
        raise ValueError(
            "aero attention: cross-attention is not supported; keep the host's own module for it"
        )
    token_mask = None
    if attention_mask is not None:
        if attention_mask.dtype != torch.bool:
            raise ValueError(
                "aero attention: attention_mask must be boolean (True where visible), got "
                f"{attention_mask.dtype}; call model.set_attn_implementation('aero')"
            )
        # A token that no query sees is padding.
        token_mask = attention_mask[:, 0].any(dim=1)[:, -hidden_states.shape[1] :]
        token_mask = token_mask.expand(hidden_states.shape[0], -1)
    for former in (past_key_values, layer_past):
        cache = former if cache is None else cache
    rotary = None
    if position_embeddings is not None:  # [B, T, R], the angles twice
        cos, sin = (table.chunk(2, dim=-1)[0].unsqueeze(1) for table in position_embeddings)
        rotary = (cos, sin)
    return SequenceContext(
        mask=attention_mask,
        token_mask=token_mask,
        position_ids=position_ids,
        rotary=rotary,
        cache=cache,
    )
