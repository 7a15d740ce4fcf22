"""Private-inference bytes of the report's networks, and the paper's numbers for the same labels.

Temperatures and factors of shaped attention are public on every stack, as the paper's bytes show.
"""

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.mpc.simulation import cheetah_stack_names
from aero.paper import PUBLIC, paper_tables, with_one_more_layernorm
from aero.report.report_file import PaperRow, PassCost, PrivateInference

# Table 4 of the paper: GPT-2 (small), 12 layers, T = 128.
GPT2_CONTEXT = 128


def stacks() -> list[str]:
    """Returns the protocol stacks of the report, the one the paper's bytes show first."""
    return cheetah_stack_names()


def describe_costs(trained: ArchitectureSpec) -> PrivateInference:
    """Returns the `private_inference` part of a report.json entry.

    Args:
        trained: the network as trained, costed at its own sizes and, by its label, at GPT-2's.
    """
    gpt2 = gpt2_spec(trained)
    return PrivateInference(
        trained={stack: _cost(trained, stack) for stack in stacks()},
        gpt2=None if gpt2 is None else {stack: _cost(gpt2, stack) for stack in stacks()},
        gpt2_one_more_layernorm=None if gpt2 is None else _one_more_layernorm(gpt2),
        paper=_published(trained.label),
    )


def gpt2_spec(trained: ArchitectureSpec) -> ArchitectureSpec | None:
    """Returns the label at GPT-2 size, T = 128, with the operators the paper's tables list.

    Those list no final norm for networks with LayerNorm. None if GPT-2 has too few layers for it.
    """
    try:
        spec = ArchitectureSpec.from_label(trained.label, model="gpt2", context_length=GPT2_CONTEXT)
    except ValueError:
        return None
    listed_without = spec.norm == "layer" and not spec.shaped_attention
    return spec.replace(final_norm="none") if listed_without else spec


def secret_temperature_bytes(spec: ArchitectureSpec) -> float | None:
    """Returns the bytes that a secret temperature per head and position adds on the paper's stack.

    None for a network without that temperature.
    """
    if spec.temperature != "head_position":
        return None
    stack = stacks()[0]
    public, secret = (
        mpc.simulate(spec, stack=stack, **PUBLIC | {"secret_temperature": is_secret})
        for is_secret in (False, True)
    )
    return float(secret.comm_bytes - public.comm_bytes)


def unchecked_parts(specs: list[ArchitectureSpec]) -> list[str]:
    """Returns the operations whose cost no published or measured number checks."""
    found: dict[str, None] = {}
    for spec in specs:
        for stack in stacks():
            report = mpc.simulate(spec, stack=stack, **PUBLIC)
            found.update((part, None) for part in report.unchecked)
    return list(found)


def _cost(spec: ArchitectureSpec, stack: str) -> PassCost:
    report = mpc.simulate(spec, stack=stack, **PUBLIC)
    kinds = {kind: float(cost.comm_bytes) for kind, cost in report.by_kind.items()}
    return PassCost(
        comm_bytes=float(report.comm_bytes),
        rounds=int(report.rounds),
        seconds=report.latency().seconds,
        by_kind={kind: value for kind, value in kinds.items() if value > 0},
    )


def _one_more_layernorm(gpt2: ArchitectureSpec) -> float | None:
    """Bytes with one LayerNorm more than the paper lists; the paper's bytes contain it."""
    if gpt2.final_norm == "layer":
        return None
    return with_one_more_layernorm(mpc.simulate(gpt2, stack=stacks()[0]))


def _published(label: str) -> PaperRow | None:
    """The paper's row for a label: perplexity, GB and minutes of GPT-2 (small) at T = 128."""
    rows = [
        row
        for row in paper_tables()
        if (row["label"], row["model"], row["num_layers"], row["context_length"])
        == (label, "gpt2", 12, GPT2_CONTEXT)
    ]
    # A label can stand in several tables; only Table 4 has bytes.
    rows.sort(key=lambda row: row.get("comm_gb") is None)
    if not rows:
        return None
    row = rows[0]
    return PaperRow(
        table=row["table"],
        perplexity=row.get("perplexity"),
        diverged=bool(row.get("diverged")),
        comm_gigabytes=row.get("comm_gb"),
        latency_minutes=row.get("latency_minutes"),
    )
