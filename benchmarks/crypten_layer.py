r"""Bytes of one layer of GPT-2's width under CrypTen, two processes, by its own count.

    pip install --no-deps --target build/crypten crypten==0.4.1 omegaconf \
        antlr4-python3-runtime==4.9.3
    PYTHONPATH=build/crypten python benchmarks/crypten_layer.py --output build/crypten_layer.json

CrypTen's reader of ONNX does not import with today's torch and is replaced by an empty module. A
party counts what it sends and what it receives, so half of both parties' counts is what all send.
Triples come from a trusted dealer, who is the first party and sends nothing. Weights and inputs are
shares.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS, WIDTH, HEADS, HIDDEN = 128, 768, 12, 3072


def parts(crypten: Any, torch: Any) -> dict[str, Callable[[], object]]:
    """By name: what a layer computes, on random shares."""

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


def count() -> dict[str, dict[str, int]]:
    """Bytes and rounds of each part, as one party counts them."""
    import crypten
    import torch

    torch.manual_seed(0)
    crypten.cfg.communicator.verbose = True  # or it counts nothing
    found = {}
    for name, compute in parts(crypten, torch).items():
        crypten.communicator.get().reset_communication_stats()
        compute()
        sent = crypten.communicator.get().get_communication_stats()
        found[name] = {"bytes": int(sent["bytes"]), "rounds": int(sent["rounds"])}
    return found


def main() -> None:
    """Runs both parties and prints a line per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    reader: Any = types.ModuleType("crypten.nn.onnx_converter")
    reader.from_onnx = reader.from_pytorch = reader.from_tensorflow = reader.TF_AND_TF2ONNX = None
    sys.modules["crypten.nn.onnx_converter"] = reader
    import crypten.mpc

    parties = crypten.mpc.run_multiprocess(world_size=2)(count)()
    found = {
        name: {
            "bytes": sum(party[name]["bytes"] for party in parties) // 2,
            "rounds": parties[0][name]["rounds"],
        }
        for name in parties[0]
    }
    sent_in_all = sum(part["bytes"] for part in found.values())
    print(f"in all: {sent_in_all / 1e6:.1f} MB")
    for name, sent in found.items():
        print(f"{name}: {sent['bytes'] / 1e6:.1f} MB, {sent['rounds']} rounds")
    chosen.output.write_text(json.dumps({"tokens": TOKENS, "parts": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
