"""CPU seconds of SPU's protocols without ciphertexts, and the two rates that fit them.

All parties in one process, so that seconds on the clock mean little: the processor's are counted.
Run from a checkout, in the environment of `aero`:

    python benchmarks/private/measure_share_rates.py --output benchmarks/results/NAME.json

writes the file and a page beside it. A minute of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PARTIES = {"semi2k": 2, "aby3": 3}
# Of x, [128, 768], y like it, and w, [768, 3072], all shares: lines, and the multiplications of
# numbers in their matrix products.
LINES: dict[str, tuple[str, int]] = {
    "x * y": ("x * y", 0),
    "maximum(x, 0)": ("jnp.maximum(x, 0)", 0),
    "tanh GELU": ("jax.nn.gelu(x, approximate=True)", 0),
    "softmax of rows": ("jax.nn.softmax(x, -1)", 0),
    "RMSNorm of rows": ("x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True))", 0),
    "128x768x3072": ("x @ w", 128 * 768 * 3072),
    "128x768x1536": ("x @ w[:, :1536]", 128 * 768 * 1536),
    "64x768x3072": ("x[:64] @ w", 64 * 768 * 3072),
    "128x768x768": ("x @ w[:, :768]", 128 * 768 * 768),
}
RUNS = 3  # the first compiles, and makes what is made once


def main() -> None:
    """Measures every line under every protocol, fits the rates, writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
    from aero.private.environment import private_command

    rows: list[dict[str, Any]] = []
    for protocol in PARTIES:
        command = [*private_command(str(Path(__file__).resolve())), f"only {protocol}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(done.stdout.splitlines()[-1])
    rates = fitted(rows)
    for row in rows:
        row["ratio"] = predicted(row, rates) / row["seconds"]
    machine = {"processors": os.cpu_count(), "load": round(os.getloadavg()[2]), **processor()}
    write_json_atomically(chosen.output, {"machine": machine, "rates": rates, "rows": rows})
    write_bytes_atomically(chosen.output.with_suffix(".md"), page(machine, rows, rates).encode())


def processor() -> dict[str, str]:
    """Its family and model, by Linux."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    return {name: told.get(name, "unknown") for name in ("model name", "cpu family", "model")}


def predicted(row: dict[str, Any], rates: dict[str, float]) -> float:
    """Seconds of one party."""
    return float(
        row["sent_bytes"] * rates["share_byte_seconds"]
        + row["products"] * rates["ring_product_seconds"]
    )


def fitted(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Least squares of relative errors, no rate below 0."""
    import numpy as np
    from scipy.optimize import nnls

    counts = np.array([[row["sent_bytes"], row["products"]] for row in rows], dtype=float)
    seconds = np.array([row["seconds"] for row in rows])
    found, _ = nnls(counts / seconds[:, None], np.ones(len(rows)))
    return dict(zip(("share_byte_seconds", "ring_product_seconds"), map(float, found), strict=True))


def page(machine: dict[str, Any], rows: list[dict[str, Any]], rates: dict[str, float]) -> str:
    """The times, what the rates say of them, and the rates."""
    misses = [abs(row["ratio"] - 1) for row in rows]
    lines = [
        "# Times of protocols without ciphertexts on one core",
        "",
        "SPU 0.9.5, Z_2^64, 18 fraction bits, all parties in one process over links in memory; "
        f"the least of {RUNS - 1} runs after a first. Seconds of the processor, divided by the "
        "parties; MB are those that one party sends. Written by "
        "`benchmarks/private/measure_share_rates.py`.",
        "",
        f"{machine['model name']} (family {machine['cpu family']}, model {machine['model']}), "
        f"{machine['processors']} processors that {machine['load']} other tasks wanted too.",
        "",
        "| protocol | line | MB | products (1e6) | seconds | from rates | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row['protocol']} | {row['line']} | {row['sent_bytes'] / 1e6:,.2f} | "
            f"{row['products'] / 1e6:,.0f} | {row['seconds']:.4f} | "
            f"{row['seconds'] * row['ratio']:.4f} | {row['ratio']:.2f} |"
        )
    lines += [
        "",
        f"{1e9 * rates['share_byte_seconds']:.2f} ns for a byte that a party sends and "
        f"{1e9 * rates['ring_product_seconds']:.3f} ns for a multiplication in a matrix product, "
        f"by least squares of relative errors: {100 * sum(misses) / len(misses):.0f} % off in the "
        f"mean, {100 * max(misses):.0f} % at worst.",
        "",
    ]
    return "\n".join(lines)


def measure(protocol: str) -> list[dict[str, Any]]:
    """Bytes and seconds of each line; in the private environment."""
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
    shapes = ((128, 768), (128, 768), (768, 3072))
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    inputs = [parties.put("x", array, Party.CLIENT) for array in arrays]
    found = []
    for line, (code, products) in LINES.items():
        function = eval(f"lambda x, y, w: {code}", {"jax": jax, "jnp": jnp})
        seconds = []
        for _ in range(RUNS):
            start = time.process_time()
            parties.discard(parties.run("line", function, *inputs))
            seconds.append(time.process_time() - start)
        sent = parties.calls[-1].traffic.comm_bytes / PARTIES[protocol]
        found.append(
            {"protocol": protocol, "line": line, "sent_bytes": sent, "products": products,
             "seconds": min(seconds[1:]) / PARTIES[protocol]}
        )  # fmt: skip
        print(found[-1], file=sys.stderr)
    parties.close()
    return found


if __name__ == "__main__":
    if sys.argv[1].startswith("only "):
        print(json.dumps(measure(sys.argv[1].removeprefix("only "))))
    else:
        main()
