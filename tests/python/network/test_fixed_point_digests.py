"""What fixed point computes of every kind of label is what it was, to the last bit.

`python -m tests.python.network.test_fixed_point_digests` records it anew, after a change that is
meant to move results.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from aero.fixed_point import Approximations
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.foreign_writer import describe_model
from aero.network.description import Network
from aero.network.ring_reader import RingNetwork

from ..models.labels import FAMILIES, LABELS

RECORDED = Path(__file__).parents[2] / "data" / "fixed_point_digests.json"
ARITHMETICS = {
    "floors": Approximations(),
    "shares": Approximations(
        truncation="shares", secret_temperature=True, gelu="segment", exp_ring_bits=32,
        one_bit_product_error=True,
    ),
}  # fmt: skip
PAIRS = [
    (label, family)
    for label in LABELS
    for family in FAMILIES
    if not (label.startswith("SOTA:") and family == "pythia")
]


def digests(label, family):
    """Of the logits of 11 tokens in each arithmetic, the weights exact multiples of 2^-11."""
    config = AeroConfig.from_label(label, model="tiny", **FAMILIES[family])
    described = describe_model(AeroForCausalLM(config))
    random = np.random.default_rng(0)
    tensors = {
        name: random.integers(-512, 513, size=tensor.shape) / 2048
        for name, tensor in sorted(described.tensors.items())
    }
    network = Network(described.description, tensors)
    tokens = np.arange(11)[None] * 7 % described.description["vocab_size"]
    return {
        name: hashlib.sha256(RingNetwork(network, arithmetic).logits(tokens).tobytes()).hexdigest()
        for name, arithmetic in ARITHMETICS.items()
    }


def all_digests():
    return {f"{label}, {family}": digests(label, family) for label, family in PAIRS}


@pytest.mark.parametrize(("label", "family"), PAIRS)
def test_fixed_point_results_are_those_that_were_recorded(label, family):
    assert digests(label, family) == json.loads(RECORDED.read_text())[f"{label}, {family}"]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(all_digests(), indent=1) + "\n")
