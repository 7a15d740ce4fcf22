"""Bytes of one layer of GPT-2's width under other protocols than Cheetah: whose is the saving?

    python benchmarks/private_protocols.py --output build/private_protocols.json

Runs the layers of `aero.private.compute.forward`, baseline and softmax-only, with random weights in
SPU's SEMI2K (two parties, the first of whom deals Beaver triples) and ABY3 (three parties, one of
whom may be corrupt), all parties in one process of the private environment. Every byte counts once,
as its sender counts it. `--protocols SECURENN` runs SecureNN (three parties, one of whom only
helps), which takes minutes for 32 tokens.

    python benchmarks/private_protocols.py --families --output build/private_families.json

runs a layer of BERT and one of Llama instead, 256 channels wide, for 64 tokens, under Cheetah too,
and has what the simulator says beside.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

LABELS = "SM+LN+G", "SM+ScFuFFN"
SIZES = {"num_layers": 1, "vocab_size": 256}  # the rest is GPT-2's: 768 channels, 12 heads
PROTOCOLS = {"SEMI2K": 2, "ABY3": 3, "SECURENN": 3, "CHEETAH": 2}
SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 256, "num_hidden_layers": 1, "max_position_embeddings": 512,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {**SMALL, "num_attention_heads": 4, "intermediate_size": 1024},
    "llama": {
        **SMALL, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 704,
    },
}  # fmt: skip
SENT = re.compile(r"total send bytes (\d+)")


def main() -> None:
    """Exports both networks, measures them in the private environment, prints a table."""
    import torch

    from aero import mpc
    from aero.export import export_weights
    from aero.internals.atomic_files import write_json_atomically
    from aero.models import AeroConfig, AeroForCausalLM
    from aero.private.settings import STACK, PrivateSettings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--protocols", nargs="+", choices=PROTOCOLS, default=["SEMI2K", "ABY3"], metavar="NAME"
    )
    parser.add_argument("--families", action="store_true", help="BERT and Llama instead")
    chosen = parser.parse_args()
    if chosen.families:
        write_json_atomically(chosen.output, {"tokens": 64, "layers": families(64)})
        return
    found: dict[str, dict[str, Any]] = {f"Cheetah, {STACK}, predicted": {}}
    for label in LABELS:
        torch.manual_seed(0)
        config = AeroConfig.from_label(label, model="gpt2", **SIZES)
        with tempfile.TemporaryDirectory() as folder:
            export_weights(AeroForCausalLM(config).eval(), Path(folder))
            for protocol in chosen.protocols:
                found.setdefault(protocol, {})[label] = measured(folder, chosen.tokens, protocol)
        fields = {**PrivateSettings().stack_fields(), "setup": False}
        report = mpc.simulate(config.spec, context_length=chosen.tokens, stack=STACK, **fields)
        found[f"Cheetah, {STACK}, predicted"][label] = {"bytes": report.by_layer[0].comm_bytes}
    for protocol, layers in found.items():
        baseline, softmax_only = (layers[label]["bytes"] for label in LABELS)
        layers["factor"] = baseline / softmax_only
        row = f"{baseline / 1e6:,.1f} | {softmax_only / 1e6:,.1f} | {layers['factor']:.2f} |"
        print(f"| {protocol} | {row}")
    write_json_atomically(chosen.output, {"tokens": chosen.tokens, "protocols": found})


def families(tokens: int) -> list[dict[str, Any]]:
    """A row per family and protocol: what the layer sends and what the simulator says."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    from aero import mpc
    from aero.export.plain_weights import write_network
    from aero.models.foreign_writer import describe_model
    from aero.private.settings import STACKS, PrivateSettings

    rows = []
    for name, fields in FAMILIES.items():
        torch.manual_seed(0)
        kind: Any = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
        model = kind.from_config(AutoConfig.for_model(name, **fields)).eval()
        for protocol in ("semi2k", "aby3", "cheetah"):
            with tempfile.TemporaryDirectory() as folder:
                write_network(describe_model(model), Path(folder))
                row = measured(folder, tokens, protocol.upper())
            settings = {**PrivateSettings(protocol=protocol).stack_fields(), "setup": False}
            stack = STACKS[protocol]
            report = mpc.simulate(model.config, context_length=tokens, stack=stack, **settings)
            row |= {"network": name, "stack": stack, "predicted": report.by_layer[0].comm_bytes}
            rows.append(row)
            off = 100 * (row["predicted"] / row["bytes"] - 1)
            print(
                f"| {name} | {stack} | {row['bytes']:,} | {row['predicted']:,.0f} | {off:+.3f} % |"
            )
    return rows


def measured(folder: str, tokens: int, protocol: str) -> dict[str, Any]:
    """What `measure` returns, from the private environment."""
    from aero.private.environment import private_command

    command = [*private_command(__file__), folder, str(tokens), protocol]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(protocol, found, file=sys.stderr, flush=True)
    return found


def measure(folder: str, tokens: int, protocol: str) -> dict[str, Any]:
    """Bytes that all parties send for the layer, and its distance from plain JAX."""
    import jax.numpy as jnp
    import numpy as np
    import spu
    from spu import libspu

    from aero.network.files import read_network
    from aero.private.compute.calls import Value
    from aero.private.compute.pieces import network_pieces
    from aero.private.compute.spu_runtime import Compiler, runtime_config
    from aero.private.settings import PrivateSettings

    settings, count = PrivateSettings(reveal="all"), PROTOCOLS[protocol]
    network = read_network(folder)
    pieces = network_pieces(network, settings)
    [layer] = [piece for piece in pieces if piece.name == "layer 0"]
    config = runtime_config(settings, profiled=True)
    config.protocol = getattr(libspu.ProtocolKind, protocol)
    log = Path(tempfile.mkdtemp()) / "spu.log"
    options = libspu.logging.LogOptions()
    options.enable_console_logger, options.system_log_path = False, str(log)
    options.log_level = libspu.logging.LogLevel.INFO
    libspu.logging.setup_logging(options)
    link = libspu.link.Desc()
    link.recv_timeout_ms = 1_800_000  # on a busy machine SecureNN computes for minutes
    for party in range(count):
        link.add_party(f"party {party}", f"thread-{party}")
    runtimes: list[Any] = [None] * count

    def at_once(work: Any) -> None:
        threads = [threading.Thread(target=work, args=(party,)) for party in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def connect(party: int) -> None:
        runtimes[party] = spu.Runtime(libspu.link.create_mem(link, party), config)

    at_once(connect)
    inputs = spu.Io(count, config)
    table, *_ = network.weights(next(network.operations())).values()
    stream = np.random.default_rng(0).standard_normal((1, tokens, table.shape[-1]))
    stream = stream.astype(np.float32)
    arguments: list[Any] = []
    compiler = Compiler(settings)
    for array in ({k: np.asarray(v) for k, v in layer.weights.items()}, stream):
        arrays = array if isinstance(array, dict) else {"": array}
        values = {}
        for name, one in arrays.items():
            values[name] = Value(compiler.new_name(), one.shape, one.dtype)
            shares = inputs.make_shares(one, libspu.Visibility.VIS_SECRET, -1)
            for runtime, share in zip(runtimes, shares, strict=True):
                runtime.set_var(values[name].name, share)
        arguments.append(values if isinstance(array, dict) else values[""])
    program = compiler.program("layer", layer.function, tuple(arguments))
    if protocol == "CHEETAH":  # the first time it sets up oblivious transfers
        at_once(lambda party: runtimes[party].run(program.executable))
    before = log.stat().st_size
    at_once(lambda party: runtimes[party].run(program.executable))
    with log.open("rb") as lines:
        lines.seek(before)
        sent = [int(size) for size in SENT.findall(lines.read().decode())]
    if len(sent) != count:
        raise RuntimeError(f"expected the counts of {count} links, got {len(sent)}")
    result, _ = program.results
    opened = inputs.reconstruct([runtime.get_var(result.name) for runtime in runtimes])
    plain, _ = layer.function({k: jnp.asarray(v) for k, v in layer.weights.items()}, stream)
    off = float(np.abs(np.asarray(opened) - np.asarray(plain)).max())
    return {"bytes": sum(sent), "by_party": sent, "largest_difference": off}


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3] in PROTOCOLS:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main()
