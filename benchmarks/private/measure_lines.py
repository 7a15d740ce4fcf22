"""Measures what one line of JAX costs under SPU's three protocols, in bytes per element.

All parties in one process. Run from a checkout, in the environment of `aero`:

    python benchmarks/private/measure_lines.py --output benchmarks/results/NAME.json

writes the file and a page beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROTOCOLS = ("cheetah", "semi2k", "aby3")
ROWS, COLUMNS = 32, 512
# The scores of eight query heads in two groups, and the groups' key heads, [2, 32, 64].
QUERIES = "x.reshape(32, 8, 64).swapaxes(0, 1)"
KEYS = "y[:, :128].reshape(32, 2, 64).swapaxes(0, 1)"
# SPU gives the largest in no order.
CHOSEN = "lambda values, places: values.sum(-1) + places.sum(-1)"
# Of x and y, [32, 512] of shares; the group's second line is what `aero private` runs instead.
LINES = {
    "x * y": "x * y",
    "x * 0.3": "x * 0.3",
    "jnp.maximum(x, 0)": "jnp.maximum(x, 0)",
    "jnp.square(jnp.maximum(x, 0))": "jnp.square(jnp.maximum(x, 0))",
    "jnp.exp(-jnp.abs(x))": "jnp.exp(-jnp.abs(x))",
    "jnp.exp(x)": "jnp.exp(x)",
    "1 / (x + 8)": "1.0 / (x + 8.0)",
    "x / (y + 8)": "x / (y + 8.0)",
    "jax.lax.rsqrt(x + 8)": "jax.lax.rsqrt(x + 8.0)",
    "jnp.max(x, -1)": "jnp.max(x, -1)",
    "jnp.clip(x, -1, 1)": "jnp.clip(x, -1.0, 1.0)",
    "jnp.tanh(x)": "jnp.tanh(x)",
    "jax.nn.sigmoid(x)": "jax.nn.sigmoid(x)",
    "x * jax.nn.sigmoid(x)": "x * jax.nn.sigmoid(x)",
    "jax.nn.silu(x) * y": "jax.nn.silu(x) * y",
    "x / 2 * (1 + jnp.tanh(x / 2))": "(x * 0.5) * (1 + jnp.tanh(x * 0.5))",
    "jax.nn.gelu(x, approximate=True)": "jax.nn.gelu(x, approximate=True)",
    "jax.nn.gelu(x, approximate=False)": "jax.nn.gelu(x, approximate=False)",
    "x / 2 * (1 + erf(x / sqrt(2)))": "(x * 0.5) * (1 + jax.lax.erf(x * 0.7071067811865476))",
    "x / jnp.sqrt(jnp.mean(x * x))": "x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True))",
    "q @ jnp.repeat(k, 4, 0).mT": f"({QUERIES}) @ jnp.repeat({KEYS}, 4, 0).mT",
    "q.reshape(2, 128, 64) @ k.mT": f"({QUERIES}).reshape(2, 128, 64) @ ({KEYS}).mT",
    "jnp.where(x == y, x, 0)": "jnp.where(x == y, x, 0.0)",
    "jax.nn.softmax(r8)": "jax.nn.softmax(x.reshape(2048, 8), -1)",
    "jax.lax.top_k(r8, 2)": f"({CHOSEN})(*jax.lax.top_k(x.reshape(2048, 8), 2))",
    "jax.lax.top_k(r64, 6)": f"({CHOSEN})(*jax.lax.top_k(x.reshape(256, 64), 6))",
}


def main() -> None:
    """Measures every line under every protocol and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
    from aero.private.environment import private_command

    found: dict[str, dict[str, Any]] = {line: {} for line in LINES}
    for protocol in PROTOCOLS:
        command = [*private_command(str(Path(__file__).resolve())), f"only {protocol}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line, one in json.loads(done.stdout.splitlines()[-1]).items():
            found[line][protocol] = one
    write_json_atomically(chosen.output, {"rows": ROWS, "columns": COLUMNS, "lines": found})
    write_bytes_atomically(chosen.output.with_suffix(".md"), table(found).encode())


def table(found: dict[str, dict[str, Any]]) -> str:
    """Bytes per element and the largest error, as a page."""
    lines = [
        "# What one line of JAX costs under SPU",
        "",
        f"Bytes that all parties send for each element of {ROWS} x {COLUMNS} shares, SPU 0.9.5, "
        "Z_2^64, 18 fraction bits, one run of each line; in brackets the largest difference from "
        "JAX on standard normal numbers. Under Cheetah a line pays whole extensions of Ferret. "
        "q [8, 32, 64] are x as eight query heads, k [2, 32, 64] two key heads of y; r8 and r64 "
        "are x as rows of 8 and 64, as of a router's logits. How many numbers top_k compares is "
        "chance. "
        "Written by `benchmarks/private/measure_lines.py`.",
        "",
        "| line | " + " | ".join(PROTOCOLS) + " |",
        "| --- |" + " ---: |" * len(PROTOCOLS),
    ]
    for line, by_protocol in found.items():
        cells = [
            f"{one['bytes'] / (ROWS * COLUMNS):,.1f} ({one['largest_difference']:.1e})"
            for one in (by_protocol[protocol] for protocol in PROTOCOLS)
        ]
        lines.append(f"| `{line}` | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def measure(protocol: str) -> dict[str, Any]:
    """Bytes and error of each line, in the private environment."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from aero.private.compute.calls import Party
    from aero.private.compute.in_process import InProcessParties
    from aero.private.compute.inference import set_up
    from aero.private.settings import PrivateSettings

    parties = InProcessParties(PrivateSettings(protocol=protocol))
    set_up(parties)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((ROWS, COLUMNS)).astype(np.float32) for _ in "xy"]
    # Not inputs of one party, which some products would take in the clear.
    inputs = [parties.put("x", array, Party.CLIENT) for array in arrays]
    found = {}
    for line, code in LINES.items():
        function = eval(f"lambda x, y: {code}", {"jax": jax, "jnp": jnp})
        result = parties.run("line", function, *inputs)
        sent = parties.calls[-1].traffic.comm_bytes
        off = np.abs(parties.reveal(result) - np.asarray(function(*map(jnp.asarray, arrays)))).max()
        parties.discard(result)
        found[line] = {"bytes": sent, "largest_difference": float(off)}
        print(protocol, line, sent, file=sys.stderr)
    parties.close()
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("only "):
        print(json.dumps(measure(sys.argv[1].removeprefix("only "))))
    else:
        main()
