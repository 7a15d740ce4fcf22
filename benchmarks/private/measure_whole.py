"""Measures networks of GPT-2 small's size, whole: a prompt, then tokens with kept keys and values.

Random weights, all parties in one process, with the settings of `aero private chat`. Run from a
checkout, in the environment of `aero`:

    python benchmarks/private/measure_whole.py SM+ScFuFFN semi2k --output FILE.json

adds the network under the protocol to the file, and writes FILE.md beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOKENS, NEW = 128, 3


def main() -> None:
    """Measures one network and writes all that the file has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("label")
    parser.add_argument("protocol")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    from aero.cli.private import chosen_settings
    from aero.cli.private_calibration import export_random
    from aero.network.files import read_description
    from aero.private.environment import private_command
    from aero.private.measuring.calibration import NetworkCell
    from aero.private.parties.memory import in_slices

    with tempfile.TemporaryDirectory() as folder:
        sizes = {"context_length": TOKENS + NEW}
        export_random(NetworkCell(chosen.label, chosen.model, sizes, TOKENS), Path(folder))
        description = read_description(Path(folder))
        settings = chosen_settings(None, chosen.protocol)
        settings = in_slices(description, settings, TOKENS, parties=settings.parties)
        asked = json.dumps([folder, settings.to_dict()])
        done = subprocess.run(
            [*private_command(str(Path(__file__).resolve())), asked],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    write(chosen.output, {"label": chosen.label, "model": chosen.model, **found}, description)


def write(output: Path, found: dict[str, Any], description: dict[str, Any]) -> None:
    """Adds what was measured, with the prediction, to the file, and writes the page."""
    from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
    from aero.internals.machine import processor
    from aero.private.parties.memory import run_bytes
    from aero.private.prediction import predicted_costs, weight_elements
    from aero.private.settings import PrivateSettings

    settings = PrivateSettings.from_dict(found["settings"])
    for number, one in enumerate(found["passes"]):
        rows = 1 if number else TOKENS
        costs = predicted_costs(description, TOKENS + number, settings, rows)
        one["predicted"] = {name: costs[name].comm_bytes for name in one["bytes"]}
    found |= {
        "predicted_memory": run_bytes(description, settings, TOKENS, parties=settings.parties),
        "weights": weight_elements(description),
        "processor": processor(),
    }

    def key(one: dict[str, Any]) -> tuple[str, ...]:
        return one["settings"]["protocol"], one["label"], one["model"]

    before = json.loads(output.read_text()) if output.exists() else []
    all_rows = sorted([*(one for one in before if key(one) != key(found)), found], key=key)
    write_json_atomically(output, all_rows)
    write_bytes_atomically(output.with_suffix(".md"), table(all_rows).encode())


def table(rows: list[dict[str, Any]]) -> str:
    """Bytes, seconds and memory beside the prediction, as a page."""
    from aero.tables import markdown_table

    lines = [
        "# Networks of GPT-2 small's size, whole, under SPU",
        "",
        f"A prompt of {TOKENS} tokens, then single tokens that read kept keys and values; 12 "
        "layers of width 768, 50,257 words. Random weights, 18 fraction bits, all parties in one "
        "process, one thread each, with the settings of `aero private chat`. Predicted is what "
        "`aero cost generate --protocol` says. Seconds are of processors, all parties together: "
        f"other work kept the machine, {rows[0]['processor']}, so busy that the clock says little. "
        "Memory is the most that the process held, beside the estimate that refuses runs. Written "
        "by benchmarks/private/measure_whole.py.",
        "",
    ]
    cells = []
    for one in rows:
        cell = {"protocol": one["settings"]["protocol"], "network": f"`{one['label']}`"}
        for name, passed in zip(("prompt", "next token"), one["passes"][:2], strict=False):
            sent, expected = (sum(passed[each].values()) for each in ("bytes", "predicted"))
            cell |= {
                f"{name}, MB": f"{sent / 1e6:,.3f}",
                f"{name}, predicted": f"{expected / 1e6:,.3f}",
                f"{name}, processor s": f"{passed['processor_seconds']:.0f}",
            }
        cell["memory, GB"] = f"{one['memory'] / 1e9:.1f}"
        cell["estimate, GB"] = f"{one['predicted_memory'] / 1e9:.1f}"
        cells.append(cell)
    header = [*cells[0]]
    numbers = range(2, len(header))
    page = markdown_table(header, [[*cell.values()] for cell in cells], right=numbers)
    return "\n".join([*lines, page, ""])


def measure(folder: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The passes with bytes and seconds, and the memory, in the private environment."""
    import numpy as np

    from aero.network.files import read_network
    from aero.private.compute.in_process import InProcessParties
    from aero.private.compute.inference import PrivateNetwork, set_up
    from aero.private.settings import PrivateSettings

    settings = PrivateSettings.from_dict(fields)
    network = read_network(folder)
    parties = InProcessParties(settings)
    set_up(parties)
    computed = PrivateNetwork(parties, network)
    new = np.random.default_rng(0).integers(0, 50257, (1, TOKENS)).astype(np.int32)
    passes = []
    for _ in range(NEW):
        before = time.process_time()
        found = computed.read_on(
            new, lambda call: print(call.name, f"{call.seconds:.1f} s", file=sys.stderr, flush=True)
        )
        passes.append(
            {
                "bytes": {call.name: call.traffic.comm_bytes for call in found.calls},
                "seconds": sum(call.seconds for call in found.calls),
                "processor_seconds": time.process_time() - before,
            }
        )
        assert found.tokens is not None
        new = found.tokens[:, None].astype(np.int32)
    parties.close()
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return {
        "settings": settings.to_dict(),
        "passes": passes,
        "memory": int(line.split()[1]) * 1024,
        "processors": os.cpu_count(),
        "load": os.getloadavg()[2],
    }


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
    else:
        main()
