"""The prices of some thousand networks, stacks, options and lengths, as they were recorded.

A change of how networks are described or priced must give each of them to the last digit.
`python -m tests.python.mpc.recorded_prices` records them again, after a change that is meant to
change a price.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.python.models.labels import LABELS

from aero import mpc
from aero.mpc.described_stacks import described_stack_names
from aero.mpc.simulation import cheetah_stack_names, optimized_stack_names

FILE = Path(__file__).parents[2] / "data" / "recorded_prices.json"

_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"model": "gpt2"},
    "pythia": {"model": "pythia-70m"},
    "parallel": {"model": "tiny", "parallel_residual": True, "context_length": 37},
    "odd": {
        "model": "tiny", "num_layers": 3, "num_heads": 3, "head_dim": 5, "width": 24,
        "hidden_width": 50, "context_length": 37, "vocab_size": 101, "rotary_fraction": 0.4,
    },
}  # fmt: skip
_LENGTHS = (1, 37, 512, 1024)
_FINAL_NORMS = ("none", "layer", "foldable", "dynamic_tanh", "dynamic_erf")
_OPTIONS: tuple[dict[str, Any], ...] = (
    *(dict(one.fields) for one in mpc.optimizations()),
    {"secret_temperature": True},
    {"secret_shape_factors": True},
    {"absorb_ffn": "where_legal"},
    {"gelu": "erf"},
    {"gelu": "erfc"},
    {"argmax": False, "setup": False, "threads": 8},
    {"causal_skip": True, "last_layer_one_row": True, "batch_heads": True, "pack_triangle": True},
)
_MAIN = ("SM+LN+G", "EReg(SM(t)+ScFuFFN)", "SM+FN+R", "SOTA:EReg(SM(t)+FN+R)", "SM+DyT+G")
_CHEETAH = (*cheetah_stack_names(), *optimized_stack_names())
_SHARES = ("spu-semi2k", "spu-aby3")

# The question, which may gain fields, and words.
_NO_PRICE = ("spec", "stack_fields", "sizes", "notes", "trust", "lowerings", "base_bytes")
# Counts and rates of protocols without ciphertexts, absent where they are 0.
_ZERO = r'"(?:helper_bytes|dealer_bytes|share_byte_seconds|ring_product_seconds)": -?0(?:\.0)?'
_ZEROS = re.compile(rf"(?<={{)(?:{_ZERO}(?:, |(?=}})))+|, {_ZERO}(?=[,}}])")

Case = tuple[str, str, dict[str, Any]]


def cases() -> Iterator[tuple[str, Case]]:
    """A name that tells everything, then label, stack and keywords."""
    for label, (size, fields), stack in itertools.product(LABELS, _SIZES.items(), _CHEETAH):
        if not (label.startswith("SOTA:") and size in ("pythia", "odd")):
            yield _case(label, stack, size, fields)
    for label, stack, length in itertools.product(LABELS, _CHEETAH[1:4], _LENGTHS):
        yield _case(label, stack, f"T {length}", {"context_length": length})
    for label, stack, options in itertools.product(LABELS, _CHEETAH[:2], _OPTIONS):
        yield _case(label, stack, str(options), options)
    for label, norm in itertools.product(LABELS, _FINAL_NORMS):
        yield _case(label, "spu-2024", f"final norm {norm}", {"final_norm": norm})
    for label, stack in itertools.product(_MAIN, described_stack_names()):
        yield _case(label, stack, "gpt2", {})
    for label, (size, fields), stack in itertools.product(_MAIN, _SIZES.items(), _SHARES):
        if not (label.startswith("SOTA:") and size in ("pythia", "odd")):
            yield _case(label, stack, size, fields)


def _case(label: str, stack: str, name: str, fields: dict[str, Any]) -> tuple[str, Case]:
    return f"{label} | {stack} | {name}", (label, stack, fields)


def priced(case: Case) -> str:
    """Bytes, rounds and a digest of all that the report and its schedule hold."""
    label, stack, fields = case
    try:
        report = mpc.simulate(label, stack=stack, **fields)
    except ValueError as error:
        return type(error).__name__
    held = report.to_dict(network="lan-1gbps", compute="paper-testbed")
    return f"{report.comm_bytes:.0f} {report.rounds} {_digest(held)}"


def generated(label: str, stack: str) -> str:
    """The same of a generation of three tokens for two prompts."""
    report = mpc.simulate_generation(
        label, new_tokens=3, batch=2, context_length=20, stack=stack, sampling="client"
    )
    return f"{report.comm_bytes:.0f} {report.rounds} {_digest(report.to_dict())}"


def generations() -> Iterator[tuple[str, tuple[str, str]]]:
    """A name, then label and stack."""
    for label, stack in itertools.product(LABELS, (*_CHEETAH, *_SHARES)):
        yield f"{label} | {stack} | generation", (label, stack)


def _digest(held: dict[str, Any]) -> str:
    """Of all but what is no price, and but counts of parties that are not there."""
    kept = {name: value for name, value in held.items() if name not in _NO_PRICE}
    text = _ZEROS.sub("", json.dumps(kept, sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def record() -> dict[str, str]:
    """All of them as they are now."""
    found = {name: priced(case) for name, case in cases()}
    return found | {name: generated(*case) for name, case in generations()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=0) + "\n")
