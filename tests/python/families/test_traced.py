"""Exported programs as operations, against descriptions of the same networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, GPT2Config

from aero import mpc

from .configurations import HEADS, configuration
from .programs import Called, exported


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, context: int, *, fused: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.fused, self.dropout = heads, fused, nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(1, 1, context, context)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (one.view(shape).transpose(1, 2) for one in self.c_attn(x).split(width, dim=2))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :length, :length] == 0, -math.inf)
            y = self.dropout(functional.softmax(att, dim=-1)) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, context: int, *, fused: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, context, fused=fused)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class HandWrittenGPT(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(61, 24), nn.Embedding(16, 24)
        self.h = nn.ModuleList(Block(24, 6, 16, fused=fused) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(24), nn.Linear(24, 61, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


TOKENS = torch.zeros(1, 16, dtype=torch.long)


@pytest.mark.parametrize("stack", [*mpc.stack_names(), "sigma"])
def test_a_hand_written_gpt_costs_what_gpt2_costs(stack: str) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 61,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 6,
        "n_positions": 16,
    }
    end: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    expected = mpc.simulate(GPT2Config(**sizes, **end), stack=stack)
    fused = mpc.simulate(exported(HandWrittenGPT(fused=True), TOKENS), stack=stack)
    assert (fused.total, fused.by_kind, fused.by_layer) == (
        expected.total, expected.by_kind, expected.by_layer,
    )  # fmt: skip
    assert fused.latency("lan-1gbps").seconds == expected.latency("lan-1gbps").seconds
    assert fused.label == "HandWrittenGPT" and fused.sizes["num_layers"] == 2
    # A mask of its own does not say that it is causal: all scores are worked on.
    masked = mpc.simulate(exported(HandWrittenGPT(fused=False), TOKENS), stack=stack)
    skips = expected.stack_fields["causal_skip"]
    assert masked.comm_bytes > expected.comm_bytes if skips else masked.total == expected.total


def test_every_operation_is_a_line_of_the_source() -> None:
    report = mpc.simulate(exported(HandWrittenGPT(fused=False), TOKENS))
    lines = {one.kind: one.name for one in report.operations if one.layer == 1}
    assert lines["QK"].startswith("test_traced.py:") and "q @ k.transpose" in lines["QK"]
    assert "self.dropout(functional.softmax" in lines["softmax"]
    ends = {one.kind: one.name for one in report.operations if one.layer is None}
    assert "self.lm_head(self.ln_f(x))" in ends["lm head"]


SOUND = {"input_features": torch.zeros(1, 7, 20)}
READ = {"input_ids": TOKENS[:, :12]}
WRITTEN = {"decoder_input_ids": TOKENS[:, :12], "use_cache": False}


@pytest.mark.parametrize(
    ("family", "inputs"),
    [
        ("vit", {"pixel_values": torch.zeros(1, 3, 20, 20)}),
        ("t5", {**READ, **WRITTEN}),
        ("whisper", {**SOUND, **WRITTEN}),
    ],
)
def test_encoders_and_cross_attention_cost_what_their_models_compute(
    family: str, inputs: dict[str, Any]
) -> None:
    config = configuration(family)
    program = exported(HEADS[family].from_config(config), **inputs)
    length: dict[str, Any] = {} if family == "vit" else {"context_length": 12}
    for stack in ("spu-0.9.5", "spu-semi2k"):
        found, report = (
            mpc.simulate(given, stack=stack, **sizes)
            for given, sizes in ((program, {}), (config, length))
        )
        parts = {*report.by_kind} - {"qkv/proj"}
        assert {*found.by_kind} - {"qkv/proj"} == parts
        assert {name: found.by_kind[name] for name in parts} == {
            name: report.by_kind[name] for name in parts
        }
        # Queries, keys and values are products of their own in the model, one here.
        assert report.by_kind["qkv/proj"].comm_bytes < found.by_kind["qkv/proj"].comm_bytes


def test_an_rmsnorm_written_out_costs_what_its_family_costs() -> None:
    config = configuration("llama")
    head: Any = AutoModelForCausalLM
    program = exported(head.from_config(config), input_ids=TOKENS[:, :12], use_cache=False)
    found, report = mpc.simulate(program), mpc.simulate(config, context_length=12)
    for part in ("layernorm", "act", "softmax", "ffn", "lm head"):
        assert found.by_kind[part] == report.by_kind[part]


def by_rsqrt(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class Normed(nn.Module):
    """An RMSNorm in numbers, and what becomes of it."""

    def __init__(
        self, after: Callable[[Tensor, Tensor, Tensor], Tensor],
        normed: Callable[[Tensor], Tensor] = by_rsqrt,
    ) -> None:  # fmt: skip
        super().__init__()
        self.after, self.normed, self.gain = after, normed, nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.normed(x), x, self.gain)


@pytest.mark.parametrize(
    "normed",
    [
        lambda x: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * (1 / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
        lambda x: (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5) * x,
    ],
)
def test_an_rmsnorm_is_known_however_its_root_is_written(
    normed: Callable[[Tensor], Tensor],
) -> None:
    def after(n: Tensor, x: Tensor, gain: Tensor) -> Tensor:
        return gain * n * x

    found, expected = (
        mpc.simulate(exported(Normed(after, one), torch.zeros(4, 8))) for one in (normed, by_rsqrt)
    )
    assert (found.total, found.by_kind, found.notes) == (
        expected.total, expected.by_kind, expected.notes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("products", "after"),
    [
        (0, lambda n, x, gain: gain * n),
        (1, lambda n, x, gain: n * x),
        (1, lambda n, x, gain: x * n),
        (1, lambda n, x, gain: n * n),
        (1, lambda n, x, gain: (gain * n) * x),
        (2, lambda n, x, gain: n * x * x),
    ],
)
def test_products_behind_a_norm_that_is_written_out_are_products_of_their_own(
    products: int, after: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    report = mpc.simulate(exported(Normed(after), torch.zeros(4, 8)))
    shapes = [(one.kind, one.shape) for one in report.operations if one.kind != "setup"]
    assert shapes == [("layernorm", "4x8"), *[("act", "32")] * products]


@pytest.mark.parametrize("stack", ["spu-0.9.5", "spu-semi2k"])
@pytest.mark.parametrize(
    ("norm", "function"),
    [
        ("layernorm", lambda x, w: functional.layer_norm(x, (8,), w)),
        ("layernorm", lambda x, w: functional.layer_norm(x, (8,), weight=w)),
        ("rmsnorm", lambda x, w: functional.rms_norm(x, (8,), w)),
        ("rmsnorm", lambda x, w: by_rsqrt(x) if w is None else by_rsqrt(x) * w),
    ],
)
def test_a_norm_without_a_gain_is_charged_none(
    norm: str, function: Callable[[Tensor, Tensor | None], Tensor], stack: str
) -> None:
    class Norm(nn.Module):
        def __init__(self, has_gain: bool) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(8)) if has_gain else None

        def forward(self, x: Tensor) -> Tensor:
            return function(x, self.gain)

    for has_gain, name in ((True, norm), (False, f"plain_{norm}")):
        program = exported(Norm(has_gain), torch.zeros(4, 8))
        found = mpc.simulate(program, stack=stack).by_kind["layernorm"]
        expected = mpc.operation_cost(name, 4, 8, stack=stack)
        assert found.rounds == expected.rounds
        assert found.comm_bytes == pytest.approx(expected.comm_bytes, abs=1)
    gain = [mpc.operation_cost(one, 32, stack=stack) for one in ("product", "truncation")]
    full, plain = (
        mpc.operation_cost(one, 4, 8, stack=stack).comm_bytes for one in (norm, f"plain_{norm}")
    )
    assert full - plain == pytest.approx(sum(one.comm_bytes for one in gain))


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (torch.cos, "cos of 1x4x4, 1 call"),
        (lambda x: x.max(-1).indices, "max of 1x4, 1 call"),
        (lambda x: x[0, 0] @ x[0, 1], "matmul of one number, 1 call"),
        (lambda x: torch.einsum("bii,bij->bj", x, x), "einsum of 1x4, 1 call"),
        (torch.sqrt, "sqrt of 1x4x4, 1 call"),
        (lambda x: torch.div(x, x, rounding_mode="floor"), "div of 1x4x4, 1 call"),
        (lambda x: torch.div(x, 3.0, rounding_mode="floor"), "div of 1x4x4, 1 call"),
        (lambda x: torch.einsum("bij,bjk,bkl->bil", x, x, x), "einsum of 1x4x4, 1 call"),
        (lambda x: functional.max_pool2d(x, 2), "max_pool2d of 1x2x2, 1 call"),
        (lambda x: functional.linear(x, torch.ones(4, 4)), "1 public factor"),
    ],
)
def test_a_program_of_which_nothing_has_a_price_says_what_lacks_one(
    function: Callable[[Tensor], Tensor], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        mpc.simulate(exported(Called(function), torch.zeros(1, 4, 4)))


@pytest.mark.parametrize("stack", ["spu-0.9.5", "aero-optimized-generation"])
@pytest.mark.parametrize("tail", [nn.ReLU(), nn.GELU(), nn.Sequential(nn.Tanh(), nn.ReLU())])
def test_features_that_an_activation_makes_have_no_argmax(tail: nn.Module, stack: str) -> None:
    program = exported(Features(tail), torch.zeros(3, 16))
    report = mpc.simulate(program, stack=stack)
    assert report.total == mpc.simulate(program, stack=stack, argmax=False).total
    assert "3x16x500" in [one.shape for one in report.operations]
    assert "argmax" not in report.by_kind
    assert not any("taken as logits" in note for note in report.notes)


class Features(nn.Module):
    def __init__(self, tail: nn.Module) -> None:
        super().__init__()
        self.linear, self.tail = nn.Linear(16, 500), tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.linear(x))


class SoftCapped(HandWrittenGPT):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(super().forward(tokens))


def test_outputs_that_may_be_logits_are_said_to_have_an_argmax() -> None:
    report = mpc.simulate(exported(Features(nn.Identity()), torch.zeros(3, 16)))
    [note] = [note for note in report.notes if "taken as logits" in note]
    assert "500 outputs" in note and "argmax=False" in note and "argmax" in report.by_kind
    for model in (HandWrittenGPT(fused=True), SoftCapped(fused=True)):  # as many as it reads
        report = mpc.simulate(exported(model, TOKENS))
        assert "argmax" in report.by_kind
        assert not any("taken as logits" in note for note in report.notes)


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.cos(self.linear(x))
        return torch.where(x > 0.5, x, torch.zeros_like(x)).sort(dim=-1).values * 2.0


def test_what_has_no_price_is_listed_with_its_shape_and_its_calls() -> None:
    report = mpc.simulate(exported(Strange(), torch.zeros(5, 8)))
    listed = [note for note in report.notes if note.startswith("no price: ")]
    assert [note.split(", first at ")[0] for note in listed] == [
        "no price: cos of 5x8, 3 calls",
        "no price: gt of 5x8, 1 call",
        "no price: where of 5x8, 1 call",
        "no price: sort of 5x8, 1 call",
    ]
    assert "test_traced.py:" in listed[0] and "torch.cos" in listed[0]
    assert report.by_layer == () and report.latency().by_layer == ()
    products = [one for one in report.operations if one.shape == "5x8x8"]
    assert len(products) == 3
    assert any("1 public factor is" in note for note in report.notes)


def test_norms_of_heads_that_are_written_out_cost_what_their_family_costs() -> None:
    config = configuration("qwen3")
    head: Any = AutoModelForCausalLM
    program = exported(head.from_config(config), input_ids=TOKENS[:, :12], use_cache=False)
    found, report = mpc.simulate(program), mpc.simulate(config, context_length=12)
    assert found.by_kind["layernorm"] == report.by_kind["layernorm"]
    assert found.by_kind["act"] == report.by_kind["act"]
    assert not any("no price" in note for note in found.notes)


def test_a_softmax_over_other_columns_than_keys_has_its_own() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return functional.softmax(self.router(x), dim=-1)

    report = mpc.simulate(exported(Routed(), torch.zeros(1, 12, 8)))
    assert [one.shape for one in report.operations if one.kind == "softmax"] == ["12x5"]


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)))
        return functional.avg_pool2d(x, 2) ** 3


def test_convolutions_are_products_of_their_windows() -> None:
    report = mpc.simulate(exported(Convolved(), torch.zeros(2, 3, 6, 6)))
    shapes = [one.shape for one in report.operations if one.kind != "setup"]
    # The norm's factors go into nothing that follows: relu is between.
    assert shapes == ["72x27x4", "288", "288", "72", "72"]


def test_programs_that_cannot_be_priced_say_why() -> None:
    program = exported(HandWrittenGPT(fused=True), TOKENS)
    assert mpc.simulate(program, context_length=16) == mpc.simulate(program)
    with pytest.raises(ValueError, match="context_length of HandWrittenGPT"):
        mpc.simulate(program, context_length=8)
    with pytest.raises(ValueError, match="vocab_size of an exported program"):
        mpc.simulate(program, vocab_size=8)
    with pytest.raises(ValueError, match=r"torch\.export\.export"):
        mpc.simulate(Strange())
    with pytest.raises(ValueError, match="earlier tokens"):
        mpc.simulate_generation(program, new_tokens=2)
    rows = {"x": {0: torch.export.Dim("rows", min=2, max=9)}}
    dynamic = torch.export.export(Strange(), (torch.zeros(5, 8),), dynamic_shapes=rows)
    with pytest.raises(ValueError, match="without dynamic_shapes"):
        mpc.simulate(dynamic)
    with pytest.raises(ValueError, match="compute something"):
        mpc.simulate(exported(nn.Identity(), torch.zeros(3)))
