"""Arguments left out of a module have the documented defaults; words may come from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from aero.nn import (
    Block,
    CausalSelfAttention,
    DropInAttention,
    DropInBlock,
    FeedForward,
    FoldableNorm,
    ScaledFeedForward,
    ScaledFusedFeedForward,
    SequenceContext,
    ShapedSelfAttention,
    Temperature,
)
from aero.nn.annealed_modules import AnnealedFeedForward
from aero.nn.linear import Linear

PLAIN = {"head_dim": None, "temperature": None, "entropy_threshold": None, "layer_index": 0}
SCALES = ("alpha", "beta")


def _in_a_block(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    return lambda **fields: kind(CausalSelfAttention(8, 2), FeedForward(8, 16), **fields)


DEFAULTS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "CausalSelfAttention": (
        lambda **fields: CausalSelfAttention(8, 2, **fields),
        {**PLAIN, "separate_projections": False},
    ),
    "ShapedSelfAttention": (lambda **fields: ShapedSelfAttention(8, 2, **fields), PLAIN),
    "DropInAttention": (
        lambda **fields: DropInAttention(8, 2, **fields),
        {"host": "gpt2", **{name: PLAIN[name] for name in PLAIN if name != "head_dim"}},
    ),
    "Block": (_in_a_block(Block), {"ln_1": None, "ln_2": None, "residual": "sequential"}),
    "DropInBlock": (
        _in_a_block(DropInBlock),
        {"ln_1": None, "ln_2": None, "residual": "sequential", "host": "gpt2"},
    ),
    "FeedForward": (
        lambda **fields: FeedForward(8, 16, **fields),
        {"activation": "gelu", "negative_slope": None, "gelu_approximation": "tanh"},
    ),
    "ScaledFeedForward": (
        lambda **fields: ScaledFeedForward(8, 16, **fields),
        {"trainable": SCALES},
    ),
    "ScaledFusedFeedForward": (
        lambda **fields: ScaledFusedFeedForward(8, **fields),
        {"trainable": SCALES},
    ),
    "AnnealedFeedForward": (
        lambda **fields: AnnealedFeedForward(8, 16, source="gelu", target="linear", **fields),
        {"trainable": (), "gelu_approximation": "tanh"},
    ),
    "FoldableNorm": (
        lambda **fields: FoldableNorm(8, **fields),
        {"kind": "channel", "eps": 1e-6, "synchronized": False},
    ),
    "Temperature": (
        lambda **fields: Temperature("head", num_heads=2, context_length=4, **fields),
        {"init": 1.0, "parametrization": "identity"},
    ),
    "Linear": (lambda **fields: Linear(8, 4, **fields), {"bias": True, "start": "normal"}),
}


def _told(module: nn.Module) -> dict[str, Any]:
    """Settings of a module and of those within it, and which parameters learn from which start."""
    kinds = (bool, int, float, str, tuple, type(None))
    settings = {
        f"{name}.{key}": value
        for name, each in module.named_modules()
        for key, value in vars(each).items()
        if isinstance(value, kinds)
    }
    starts = {n: (p.requires_grad, p.tolist()) for n, p in module.named_parameters()}
    return settings | starts | {n: b.tolist() for n, b in module.named_buffers()}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_what_the_documentation_says(name: str) -> None:
    make, fields = DEFAULTS[name]
    told = []
    for given in ({}, fields):
        torch.manual_seed(0)
        told.append(_told(make(**given)))
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", [CausalSelfAttention, ShapedSelfAttention])
def test_a_layer_alone_is_the_first_of_a_cache(kind: type[nn.Module]) -> None:
    layer, cache, x = kind(8, 2), DynamicCache(), torch.randn(2, 5, 8)
    whole, entropy = layer(x, SequenceContext())
    layer(x[:, :4], SequenceContext(cache=cache))
    last, of_last = layer(x[:, 4:], SequenceContext(cache=cache, first_position=4))
    torch.testing.assert_close(last, whole[:, 4:])
    torch.testing.assert_close(of_last, entropy[:, :, 4:])
    assert cache.get_seq_length(0) == 5


def test_there_are_no_entropies_before_the_first_forward() -> None:
    assert DropInAttention(8, 2).entropy is None
    assert DropInBlock(CausalSelfAttention(8, 2), None).entropy is None


def _attention(**fields: Any) -> CausalSelfAttention:
    return CausalSelfAttention(
        8, 2, temperature=Temperature(num_heads=2, context_length=5, **fields)
    )


WORDS: dict[str, tuple[Callable[[str], nn.Module], tuple[str, ...]]] = {
    "norm": (lambda kind: FoldableNorm(8, kind=kind), ("channel", "scalar")),
    "activation": (
        lambda word: FeedForward(8, 16, word, negative_slope=0.3),
        ("gelu", "relu", "leaky_relu", "linear"),
    ),
    "gelu": (lambda word: FeedForward(8, 16, gelu_approximation=word), ("tanh", "none")),
    "annealed": (
        lambda word: AnnealedFeedForward(8, 16, source=word, target=None),
        ("gelu", "relu", "linear"),
    ),
    "temperature": (lambda word: _attention(shape=word), ("head_position", "head", "scalar")),
    "parametrization": (
        lambda word: _attention(shape="head", parametrization=word, init=0.5),
        ("identity", "log"),
    ),
    "residual": (
        lambda word: Block(CausalSelfAttention(8, 2), FeedForward(8, 16), residual=word),
        ("sequential", "parallel", "skipless"),
    ),
    "host": (lambda word: DropInAttention(8, 2, host=word), ("gpt2", "nanogpt")),
}


@pytest.mark.parametrize(
    ("name", "word"), [(name, word) for name, (_, words) in WORDS.items() for word in words]
)
def test_a_word_that_a_file_holds_is_the_word(name: str, word: str) -> None:
    of_a_file = json.loads(json.dumps(word))
    assert of_a_file == word and of_a_file is not word
    x, results = 3 * torch.randn(2, 5, 8), []
    needs_context = name in ("temperature", "parametrization", "residual")
    for each in (word, of_a_file):
        torch.manual_seed(0)
        module = WORDS[name][0](each)
        results.append(module(x, *([SequenceContext()] if needs_context else [])))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
