"""Arguments that no module takes, each named with what it may be."""

from functools import partial

import pytest
import torch
from tests.python.refusals import assert_refused
from torch import nn
from transformers import DynamicCache

from aero.nn import (
    Block,
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    ScaledFusedFeedForward,
    Temperature,
)
from aero.nn.annealed_modules import AnnealedNorm, set_annealing_progress
from aero.nn.drop_in import _host_context
from aero.nn.linear import Linear
from aero.nn.weight_forms import normalize_weight

temperature = partial(partial, Temperature, num_heads=2, context_length=4)
annealed = AnnealedNorm(nn.LayerNorm(5), None)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: FeedForward(8, 32, "swish"), ("activation", "gelu, relu", "swish")),
        (
            lambda: ScaledFusedFeedForward(8, trainable=["gamma"]),
            ("trainable", "'alpha' and 'beta' only", "got gamma"),
        ),
        (
            lambda: Block(CausalSelfAttention(8, 2), None, parts={"shift": nn.Linear(8, 8)}),
            ("parts", "BlockPart", "got Linear for shift"),
        ),
        (lambda: FoldableNorm(3, kind="layer"), ("kind", "'channel' or 'scalar'", "got 'layer'")),
        (
            lambda: normalize_weight(Linear(2, 2), "batch_norm"),
            ("kind", "'weight_norm' or 'spectral_norm'", "'batch_norm'"),
        ),
        (temperature("layer"), ("shape", "head_position, head, scalar", "got 'layer'")),
        (temperature("head", init=0.0), ("init", "not zero", "got 0.0")),
        (
            temperature("head", init=-1.0, parametrization="log"),
            ("init", "positive", "got -1.0"),
        ),
        (
            temperature("head", parametrization="exp"),
            ("parametrization", "'identity' or 'log'", "got 'exp'"),
        ),
        (
            lambda: _host_context(torch.zeros(2, 3, 8), past=DynamicCache(), use_cache=True),
            ("cache", "called 'cache'", "as 'past'"),
        ),
        *(
            (partial(set_annealing_progress, annealed, progress), ("progress", "[0, 1]", "got"))
            for progress in (-0.1, 1.1, float("nan"))
        ),
    ],
)
def test_what_no_module_takes_is_named(call, named):
    assert_refused(call, *named)
