"""One list of sample inputs, which feeds correctness, gradients, opcheck and repeatability.

A test that asks for `sample` runs over the whole list, one that asks for `small_sample` over the
samples small enough for finite differences.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from .oracle import relative_error
from .samples import Sample, attention, ffn, packed, regularization, variant, wide


@pytest.fixture(autouse=True, scope="module")
def _several_threads() -> Iterator[None]:
    """Operators share out their work between threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(2, os.cpu_count() or 1))
    yield
    torch.set_num_threads(threads)


LARGEST = {"return_max_logits": True}
SAMPLES = [
    *attention("plain"),
    *attention("causal", S=5, is_causal=True, layout="BTHD", temperature="HT"),
    *attention("cached keys", T=3, S=7, is_causal=True, layout="BTHD", temperature="BHT"),
    *attention("more queries than keys", T=7, S=3, is_causal=True, temperature="H"),
    *attention("one query", T=1, S=11, is_causal=True, temperature="1"),
    *attention("one key", S=1, temperature=""),
    *attention("one of each", B=1, H=1, T=1, S=1, D=1, temperature="HT"),
    *attention("mask", mask="full", temperature="HT"),
    *attention(
        "left padding", mask="padding", is_causal=True, S=5, temperature="HT", layout="BTHD"
    ),
    *attention("key mask", mask="keys", layout="sliced"),
    *attention("transposed mask", mask="transposed", layout="column", temperature="BHT"),
    *attention("fully masked", mask="nothing", temperature="H"),
    *attention("grouped heads", H=4, G=2, temperature="H", scale=0.7),
    *attention("no queries", T=0, temperature="HT"),
    *attention("no keys", S=0, temperature="HT"),
    *attention("no batch", B=0, temperature="1"),
    *attention("primes", B=1, T=67, S=131, D=37, is_causal=True, temperature="HT", small=False),
    *attention("widest head", B=1, T=33, S=33, D=256, is_causal=True, layout="BTHD", small=False),
    *attention(
        "model",
        H=4,
        T=128,
        S=128,
        D=64,
        is_causal=True,
        layout="BTHD",
        temperature="HT",
        small=False,
    ),
    wide("narrow values", D=5, Dv=3, H=4, G=2, temperature="HT", layout="BTHD"),
    wide("wide values", T=3, D=3, Dv=9, is_causal=True, mask="full"),
    wide("widest values", B=1, T=33, S=40, D=192, Dv=512, is_causal=True, small=False),
    variant("window", learned={}, others={"window": (2, 1)}, temperature="HT", S=9),
    variant("left window", learned={}, others={"window": (1, None)}, T=9, S=5, is_causal=True),
    variant("right window", learned={}, others={"window": (None, 2)}, T=3, mask="full"),
    variant("long window", learned={}, others={"window": (50, 0)}, B=1, T=300, S=331, small=False),
    variant("soft cap", learned={}, others={"softcap": 0.8}, temperature="HT", is_causal=True),
    variant("sinks", learned={"sinks": "H"}, temperature="HT", mask="full"),
    variant("sinks of rows", learned={"sinks": "BH"}, T=7, S=3, is_causal=True, temperature="1"),
    variant("slopes", learned={"alibi_slopes": "H"}, temperature="HT", S=9),
    variant("bias", learned={"bias": "BHTS"}, temperature="HT", mask="full"),
    variant("bias of keys", learned={"bias": "B11S"}, H=4, G=2, is_causal=True),
    variant("bias of rows", learned={"bias": "T1"}, T=3),
    variant("largest score", learned={}, others=LARGEST, temperature="HT", mask="full"),
    variant(
        "largest score beside a sink",
        learned={"sinks": "H"},
        others={**LARGEST, "softcap": 0.8},
        T=7,
        S=3,
        is_causal=True,
        temperature="1",
    ),
    variant(
        "packed", learned={}, others=packed([0, 2, 5], [0, 4, 7]), B=1, is_causal=True, H=4, G=2
    ),
    variant(
        "packed variants",
        learned={"alibi_slopes": "H", "sinks": "H"},
        others={**packed([0, 3, 3, 7]), **LARGEST, "window": (2, 1)},
        B=1,
        T=7,
        temperature="HT",
    ),
    variant(
        "everything",
        learned={"bias": "HTS", "alibi_slopes": "BH", "sinks": "H"},
        others={"window": (40, 3), "softcap": 2.0},
        temperature="BHT",
        H=4,
        G=2,
        T=70,
        S=131,
        D=24,
        mask="full",
        small=False,
    ),
    regularization("paper's listing"),
    regularization("algorithm 1", reduction="query_mean"),
    regularization("masked rows", masked=True, context_length=7),
    regularization("masked means", masked=True, reduction="query_mean", thresholds=0.2),
    regularization("visible", max_entropy="log_visible", margin=0.0),
    regularization("visible means", max_entropy="log_visible", reduction="query_mean"),
    regularization("counted keys", max_entropy="log_visible", counted=True, masked=True),
    regularization(
        "counted means",
        max_entropy="log_visible",
        counted=True,
        masked=True,
        reduction="query_mean",
    ),
    regularization("one row", sizes=(1, 1, 1, 1), context_length=3),
    regularization("no rows", sizes=(2, 3, 2, 0)),
    regularization("no batch", sizes=(2, 0, 2, 3), reduction="query_mean"),
    ffn("three dimensions", 2, 3, 5),
    ffn("one row of one", 1, 1),
    ffn("vector", 7, scalar=True),
    ffn("transposed", 3, 4, 6, layout="transposed"),
    ffn("no rows", 0, 4),
    ffn("layer", 2, 67, 96, small=False),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = {"sample": SAMPLES, "small_sample": [s for s in SAMPLES if s.small]}
    for argument in chosen.keys() & metafunc.fixturenames:
        metafunc.parametrize(
            argument, chosen[argument], ids=[f"{s.operator}-{s.name}" for s in chosen[argument]]
        )


@pytest.fixture(name="relative_error")
def _relative_error() -> Callable[[Tensor, Tensor], float]:
    return relative_error


@pytest.fixture(name="named_sample")
def _named_sample() -> Callable[[str, str], Sample]:
    return lambda operator, name: next(
        s for s in SAMPLES if (s.operator, s.name) == (operator, name)
    )
