r"""Bytes of one layer of GPT-2's width under CrypTen, two processes, by its own count.

    pip install --no-deps --target build/crypten crypten==0.4.1 omegaconf \
        antlr4-python3-runtime==4.9.3
    PYTHONPATH=build/crypten python benchmarks/crypten_layer.py --output build/crypten_layer.json

With `--shaft` and PYTHONPATH a checkout of github.com/andeskyl/SHAFT, a library made of CrypTen, it
counts the functions of that paper, for 128, 256 and 512 tokens.

CrypTen's reader of ONNX does not import with today's torch and is replaced by an empty module. A
party counts what it sends and what it receives, so half of both parties' counts is what all send.
Triples come from a trusted dealer, who is the first party and sends nothing. Weights and inputs are
shares.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS, WIDTH, HEADS, HIDDEN = 128, 768, 12, 3072


def parts(crypten: Any, torch: Any) -> dict[str, Callable[[], object]]:
    """Parts of a layer, on random shares, by name."""

    def shares(*shape: int) -> Any:
        return crypten.cryptensor(torch.randn(shape))

    stream, hidden = shares(TOKENS, WIDTH), shares(TOKENS, HIDDEN)
    weights = [shares(WIDTH, 3 * WIDTH), shares(WIDTH, WIDTH), shares(WIDTH, HIDDEN)]
    down = shares(HIDDEN, WIDTH)
    heads, scores = shares(HEADS, TOKENS, WIDTH // HEADS), shares(HEADS, TOKENS, TOKENS)

    def norm() -> None:
        centred = stream - stream.mean(1, keepdim=True)
        variance = (centred * centred).mean(1, keepdim=True)
        _ = centred * (variance + 1e-5).inv_sqrt() * shares(WIDTH) + shares(WIDTH)

    def gelu() -> None:
        inner = 0.7978845608 * (hidden + 0.044715 * hidden * hidden * hidden)
        _ = 0.5 * hidden * (1 + inner.tanh())

    def products() -> None:
        for weight in weights:
            stream.matmul(weight)
        hidden.matmul(down)

    return {
        "softmax": lambda: scores.softmax(-1),
        "GELU by tanh": gelu,
        "products": products,
        "norms": lambda: (norm(), norm()),
        "QK and PV": lambda: (heads.matmul(heads.transpose(1, 2)), scores.matmul(heads)),
    }


def functions(crypten: Any, torch: Any) -> dict[str, Callable[[], object]]:
    """Functions that SHAFT computes in its own ways, by name."""

    def shares(*shape: int) -> Any:
        return crypten.cryptensor(torch.randn(shape))

    def norm(rows: int) -> None:
        stream = shares(rows, WIDTH)
        centred = stream - stream.mean(1, keepdim=True)
        inverse = (stream.var(dim=1, keepdim=True) + 1e-5).inv_sqrt()
        _ = centred * inverse * shares(WIDTH) + shares(WIDTH)

    found: dict[str, Callable[[], object]] = {}
    for rows in (128, 256, 512):
        found[f"softmax of one row of {rows}"] = functools.partial(
            lambda n: shares(1, n).softmax(1), rows
        )
        found[f"GELU of {rows} x {HIDDEN}"] = functools.partial(
            lambda n: shares(n, HIDDEN).gelu(), rows
        )
        found[f"LayerNorm of {rows} x {WIDTH}"] = functools.partial(norm, rows)
    return found


def count(is_shaft: bool) -> dict[str, dict[str, int]]:
    """Bytes and rounds of each part, as one party counts them."""
    import crypten
    import torch

    torch.manual_seed(0)
    crypten.cfg.communicator.verbose = True  # or it counts nothing
    found = {}
    for name, compute in (functions if is_shaft else parts)(crypten, torch).items():
        crypten.communicator.get().reset_communication_stats()
        compute()
        sent = crypten.communicator.get().get_communication_stats()
        found[name] = {"bytes": int(sent["bytes"]), "rounds": int(sent["rounds"])}
    return found


def main() -> None:
    """Runs both parties and prints a line per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shaft", action="store_true", help="the functions of SHAFT instead")
    chosen = parser.parse_args()
    reader: Any = types.ModuleType("crypten.nn.onnx_converter")
    reader.from_onnx = reader.from_pytorch = reader.from_tensorflow = reader.TF_AND_TF2ONNX = None
    sys.modules["crypten.nn.onnx_converter"] = reader
    import crypten.mpc

    parties = crypten.mpc.run_multiprocess(world_size=2)(count)(chosen.shaft)
    found = {
        name: {
            "bytes": sum(party[name]["bytes"] for party in parties) // 2,
            "rounds": parties[0][name]["rounds"],
        }
        for name in parties[0]
    }
    for name, sent in found.items():
        print(f"{name}: {sent['bytes']:,} B, {sent['rounds']} rounds")
    chosen.output.write_text(json.dumps({"tokens": TOKENS, "parts": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
