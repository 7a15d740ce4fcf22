"""A block is the formula of its scheme, whatever feed-forward and norms it is made of."""

import itertools

import pytest
import torch
from torch import nn

from aero.nn import (
    Block,
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
    SequenceContext,
)
from aero.nn.annealed_modules import AnnealedFeedForward, AnnealedNorm, set_annealing_progress
from aero.nn.block import BlockPart

C, SLOPE = 6, torch.full((1,), 0.3, dtype=torch.float64)
MASK = torch.tensor([[False, True, True, True], [True, True, True, True]])
FEED_FORWARDS = {
    "none": lambda: None,
    "gelu": lambda: FeedForward(C, 10, "gelu"),
    "leaky": lambda: FeedForward(C, 10, "leaky_relu"),
    "linear": lambda: FeedForward(C, 10, "linear"),
    "fused": lambda: FusedFeedForward(C),
    "scaled": lambda: ScaledFeedForward(C, 10),
    "scaled fused": lambda: ScaledFusedFeedForward(C),
    "annealed": lambda: AnnealedFeedForward(C, 10, source="gelu", target="linear"),
}
NORMS = {
    "none": lambda: None,
    "layer": lambda: nn.LayerNorm(C),
    "foldable": lambda: FoldableNorm(C),
    "annealed": lambda: AnnealedNorm(nn.LayerNorm(C), FoldableNorm(C)),
}


def normed(norm, x):
    """By the statistics of the tokens that count, as in training."""
    if norm is None or isinstance(norm, nn.LayerNorm):
        return x if norm is None else norm(x)
    foldable = norm if isinstance(norm, FoldableNorm) else norm.target
    new = foldable.weight * x / (x[MASK].square().mean(dim=0) + 1e-6).sqrt()
    return new if norm is foldable else 0.75 * norm.source(x) + 0.25 * new


@pytest.mark.parametrize("residual", ["sequential", "parallel", "skipless"])
@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_a_block_is_the_formula_of_its_scheme(kind, residual):
    for first, second in itertools.product(NORMS, NORMS):
        mlp = FEED_FORWARDS[kind]()
        block = Block(
            CausalSelfAttention(C, 2), mlp, NORMS[first](), NORMS[second](), residual=residual
        ).double()
        has_gain = residual == "skipless" and mlp is not None
        assert (block.gain is not None) == has_gain
        assert not has_gain or block.gain.tolist() == pytest.approx([0.1])
        for parameter in block.parameters():
            nn.init.uniform_(parameter, 0.4, 1.2)
        set_annealing_progress(block, 0.25)
        x = torch.randn(2, 4, C, dtype=torch.float64)
        context = SequenceContext(token_mask=MASK, negative_slope=SLOPE)
        ffn = mlp if kind != "leaky" else (lambda inputs, mlp=mlp: mlp(inputs, SLOPE))

        inputs = normed(block.ln_1, x)
        attended, entropy = block.attn(inputs, context)
        stream = x + attended if residual == "sequential" else x
        if mlp is None:
            expected = stream
        elif hasattr(mlp, "alpha"):
            expected = mlp.beta * stream + ffn(normed(block.ln_2, stream)) / mlp.alpha
        else:
            expected = stream + ffn(normed(block.ln_2, stream))
        if residual == "parallel":
            expected = expected + attended
        if residual == "skipless":
            expected = attended + (block.gain * ffn(inputs) if mlp is not None else 0)
        output, entropies = block(x, context)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(entropies, entropy)


class Doubled(BlockPart):
    """Twice what it reads, at a place of one's choice."""

    def __init__(self, place):
        super().__init__()
        self.stands = place

    place_in = of = reset_parameters = first_parameters = multiplied_out = None
    place = property(lambda self: self.stands)

    def forward(self, inputs, context):
        return 2 * inputs


@pytest.mark.parametrize("kind", ["gelu", "fused", "scaled", "scaled fused"])
@pytest.mark.parametrize("place", ["attention", "FFN", "beside FFN"])
def test_a_part_changes_what_is_read_or_adds_where_it_stands(place, kind):
    mlp, attention = FEED_FORWARDS[kind](), CausalSelfAttention(C, 2)
    block = Block(attention, mlp, nn.LayerNorm(C), nn.LayerNorm(C), parts={"twice": Doubled(place)})
    block = block.double()
    x = torch.randn(2, 4, C, dtype=torch.float64)
    context = SequenceContext(token_mask=MASK)
    attended, _ = attention(block.ln_1(x) * (2 if place == "attention" else 1), context)
    stream = x + attended
    read = block.ln_2(stream)
    fed = mlp(2 * read if place == "FFN" else read) + (2 * read if place == "beside FFN" else 0)
    alpha, beta = getattr(mlp, "alpha", 1), getattr(mlp, "beta", 1)
    torch.testing.assert_close(block(x, context)[0], beta * stream + fed / alpha)
