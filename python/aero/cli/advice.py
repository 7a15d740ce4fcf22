"""`aero cost advise | where`: from a network and a link to a decision."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import AsJson, Label, Model, Settings, Vocabulary, put, settings
from aero.cli.errors import one_line_errors

if TYPE_CHECKING:
    from aero.mpc import NetworkProfile
    from aero.mpc.advised import Advised
    from aero.mpc.changes import Change
    from aero.mpc.winners import Passes

# That the table of advice and its notes may have.
_COLUMNS = 100
Rtt = Annotated[float, typer.Option(help="Round trip, milliseconds.", min=0, max=3.6e6)]
Mbps = Annotated[float, typer.Option(help="Each direction, 1e6 bit/s.", min=1e-3, max=1e6)]
Machines = Annotated[
    str, typer.Option(help="paper-testbed, spu-epyc or none, with changes: 'spu-epyc,threads=8'.")
]
Length = Annotated[int | None, typer.Option(help="T, tokens.", min=1, max=1 << 24)]


def advise(
    label: Label,
    rtt_ms: Rtt = 1.0,
    mbps: Mbps = 1000.0,
    memory: Annotated[
        float | None, typer.Option(help="GB of each party.", min=1e-3, max=1e6)
    ] = None,
    model: Model = "gpt2",
    context_length: Length = None,
    vocab_size: Vocabulary = None,
    set_: Settings = None,
    stack: Annotated[str, typer.Option(help="What runs now.")] = "spu-0.9.5",
    compute: Machines = "spu-epyc",
    as_json: AsJson = False,
) -> None:
    """Lists what saves most, and ends in a configuration.

    Single changes of network, run, protocol and link, with what each does to the function. Seconds
    are those of one pass over all tokens.
    """
    with one_line_errors(ValueError, OSError):
        from aero.mpc.advice import advise as advised
        from aero.mpc.priced_network import trusted
        from aero.mpc.profiles import link_profile
        from aero.report.cost_texts import unchecked, word_lines
        from aero.tables import in_units, table_lines

        found = advised(
            label, link_profile(rtt_ms, mbps), compute, stack=stack,
            memory_bytes=None if memory is None else memory * 1e9,
            **_sizes(model, context_length, vocab_size), **settings(set_),
        )  # fmt: skip
        own, now = found.report.comm_bytes, found.seconds
        notes = list(dict.fromkeys(more for one in found.rows if (more := _note(one.change))))

        def cells(one: Any) -> dict[str, str]:
            row = {
                "change": one.change.short,
                "GB saved": in_units(own - one.report.comm_bytes),
                "s saved": f"{now - one.seconds:,.1f}",
                "function": _effect(one.change)[0],
            }
            row |= {} if memory is None else {"fits": _fits(one)}
            more = _note(one.change)
            return row | {"note": str(notes.index(more) + 1) if more else ""}

        def total(name: str, one: Any) -> str:
            return (
                f"{name}: {in_units(one.report.comm_bytes)} GB and {one.seconds:,.1f} s instead of "
                f"{in_units(own)} GB and {now:,.1f} s{'' if one.fits else '; it does not fit'}"
            )

        def text() -> str:
            lines = [
                f"{found.report.label}, T {found.report.sizes['context_length']}, on "
                f"{found.report.stack_text}, {found.network.name}: {in_units(own)} GB, "
                f"{now:,.1f} s",
                f"trust: {found.report.trust}",
                f"memory of a party: {_memory(found.now)}",
                "",
                *table_lines([cells(one) for one in found.rows]),
                *_wrapped("saves nothing here: " + ", ".join(found.idle or ["none"])),
                *(line for n, text in enumerate(notes, 1) for line in _wrapped(f"{n}: {text}")),
                "",
                total("the same function", found.as_it_is),
            ]
            rough = found.approximate
            if rough is not None:
                lines.append(total(f"with approximate settings ({rough.change.name})", rough))
            for one in found.networks:
                lines.append(total(f"with these settings and training ({one.change.name})", one))
            report = found.report
            doubts = unchecked(report, report.latency(found.network, compute))
            said = word_lines(
                found.notes, doubts, trusted(report.trust, report.total), report.lowerings
            )
            return "\n".join([*lines, "", *said, "", *without, *commands])

        commands, without = found.commands(label, model), found.without_command
        words = {"commands": commands, "without_command": without}
        put(text, lambda: found.to_dict() | words, str, as_json=as_json, as_csv=False)


def _effect(change: Change) -> tuple[str, str]:
    """What a change does to the function in a word or two, and the rest of it."""
    word, rest = re.split(r"[:;] |$", change.effect, maxsplit=1)
    return word, rest


def _note(change: Change) -> str:
    """What a row of the table has no room for."""
    from aero.mpc.own_networks import word_of

    name = change.name if change.name != change.short else ""
    run = ", ".join(f"{field}={word_of(value)}" for field, value in change.fields.items())
    texts = (name, _effect(change)[1], f"with {run}" if run != change.short and run else "")
    return "; ".join(text for text in texts if text)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _COLUMNS, subsequent_indent="   ", break_on_hyphens=False)


def _fits(one: Advised) -> str:
    """Tells whether a party's memory suffices: "maybe" where the shares alone are known to fit."""
    if not one.fits:
        return "no"
    if one.memory_bytes is None:
        return "maybe"
    return "sliced" if one.sliced else "yes"


def _memory(one: Advised) -> str:
    from aero.tables import in_units

    shares = in_units(one.share_bytes)
    if one.memory_bytes is None:
        return f"at least the shares of the weights, {shares} GB"
    most = in_units(one.memory_bytes, decimals=1)
    return f"at most {most} GB, of it {shares} GB shares of the weights"


def where(
    label: Label,
    rtt_ms: Rtt = 1.0,
    mbps: Mbps = 1000.0,
    model: Model = "gpt2",
    context_length: Length = None,
    vocab_size: Vocabulary = None,
    set_: Settings = None,
    compute: Machines = "spu-epyc",
    dollars: Annotated[
        Path | None, typer.Option(help="YAML table like python/aero/data/dollars.yaml.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Names the protocols that win on this link and beside it.

    Seconds, dollars and bytes for 1,000 tokens, of the pass over the prompt and of later tokens
    with cached keys and values; keys of a session, memory, and the bandwidth at which another wins.
    """
    with one_line_errors(ValueError, OSError):
        from aero.mpc.profiles import link_profile
        from aero.mpc.winners import crossover_mbps, dollar_table, passes, passes_words
        from aero.report.cost_texts import word_lines

        link, table = link_profile(rtt_ms, mbps), dollar_table(dollars)
        found = passes(label, **_sizes(model, context_length, vocab_size), **settings(set_))
        rows = _rows_of(found, link, compute, table)
        crossings = [
            {"tokens": name, "first": one.stack, "second": other.stack, "mbps": at}
            for one, other in itertools.combinations(found, 2)
            for name, first, second in (
                ("prompt", one.first, other.first), ("later tokens", one.later, other.later),
            )
            if first is not None and second is not None
            and (at := crossover_mbps(first, second, link, compute)) is not None
        ]  # fmt: skip
        first = found[0].first
        title = f"{first.label}, T {first.sizes['context_length']}, on {link.name}"
        words = passes_words(found)
        put(
            lambda: "\n".join([_winners_text(title, rows, crossings, rtt_ms, table),
                               *word_lines(words["notes"], words["unchecked"], "",
                                           words["lowerings"])]),
            lambda: {"network": link.to_dict(), "rows": rows, "wins": _wins(rows),
                     "crossovers": crossings, "dollars": table, **words},
            str, as_json=as_json, as_csv=False,
        )  # fmt: skip


def _rows_of(
    found: Sequence[Passes], link: NetworkProfile, compute: str, table: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row for each stack's pass over the prompt, and one for its later tokens."""
    from aero.mpc.winners import dollars

    rows: list[dict[str, Any]] = []
    for one in found:
        setup = one.first.by_kind.get("setup")
        reports = [("prompt", one.first, one.first.sizes["context_length"])]
        if one.later is not None:
            reports.append(("later tokens", one.later, 1))
        for (name, report, tokens), seconds in zip(
            reports, one.seconds(link, compute), strict=True
        ):
            scale = 1000 / tokens
            rows.append(
                {
                    "stack": one.stack,
                    "tokens": name,
                    "seconds": seconds,
                    "seconds_per_1000": seconds * scale,
                    "dollars_per_1000": dollars(report, seconds, one.machines, table) * scale,
                    "bytes_per_1000": report.comm_bytes * scale,
                    "dealer_bytes_per_1000": report.total.dealer_bytes * scale,
                    "setup_bytes": setup.comm_bytes if setup else 0.0,
                    "share_bytes": one.share_bytes,
                    "memory_bytes": one.memory_bytes,
                    "trust": one.first.trust,
                }
            )
    return rows


def _wins(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The stack with the least seconds, dollars and bytes, the dealer's too, of either pass."""
    measures = {
        "seconds": lambda row: row["seconds"],
        "dollars": lambda row: row["dollars_per_1000"],
        "bytes": lambda row: row["bytes_per_1000"] + row["dealer_bytes_per_1000"],
    }
    return {
        name: {
            measure: min((row for row in rows if row["tokens"] == name), key=value)["stack"]
            for measure, value in measures.items()
        }
        for name in dict.fromkeys(row["tokens"] for row in rows)
    }


def _winner_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines on whom the users of each stack trust, and who wins in what."""
    trust = {row["stack"]: row["trust"] for row in rows}
    lines = [f"trust, {stack}: {whom}" for stack, whom in trust.items()]
    for name, wins in _wins(rows).items():
        for stack in dict.fromkeys(wins.values()):
            measures = " and ".join(measure for measure, one in wins.items() if one == stack)
            lines.append(f"{name}: {stack} wins in {measures}")
    return lines


def _winners_text(
    title: str,
    rows: list[dict[str, Any]],
    crossings: list[dict[str, Any]],
    rtt_ms: float,
    table: dict[str, Any],
) -> str:
    from aero.tables import in_units, table_lines

    cells = [
        {
            "stack": row["stack"],
            "tokens": row["tokens"],
            "s": f"{row['seconds']:,.2f}",
            "s/1,000": f"{row['seconds_per_1000']:,.0f}",
            f"{table['currency']}/1,000": f"{row['dollars_per_1000']:,.2f}",
            "GB/1,000": in_units(row["bytes_per_1000"]),
            "dealer GB/1,000": in_units(row["dealer_bytes_per_1000"]),
            "keys MB": in_units(row["setup_bytes"], "MB", 1),
            "memory GB/party": (
                f"> {in_units(row['share_bytes'], decimals=1)}"
                if row["memory_bytes"] is None
                else in_units(row["memory_bytes"], decimals=1)
            ),
        }
        for row in rows
    ]
    return "\n".join(
        [
            title,
            "",
            *table_lines(cells),
            "",
            *_winner_lines(rows),
            *(
                f"{c['tokens']}: {c['first']} and {c['second']} take equally long at "
                f"{c['mbps']:,.0f} Mbit/s and {rtt_ms:g} ms"
                for c in crossings
            ),
            "note: memory is the most that a run takes with its products in one piece; in slices "
            "it takes less, and `aero cost advise --memory` prices them; > marks the shares of the "
            "weights alone",
            f"note: dollars by {table['source']}",
        ]
    )


def _sizes(model: str, context_length: int | None, vocab_size: int | None) -> dict[str, Any]:
    given: dict[str, Any] = {"context_length": context_length, "vocab_size": vocab_size}
    return {name: size for name, size in given.items() if size is not None} | (
        {} if model == "gpt2" else {"model": model}
    )
