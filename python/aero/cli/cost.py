"""`aero cost`: the cost of private inference; every command starts without torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aero.cli.arguments import (
    COMPUTE,
    NETWORKS,
    AsCsv,
    AsJson,
    Compute,
    Context,
    Html,
    Label,
    Model,
    Network,
    Settings,
    StackName,
    Vocabulary,
    check_machines,
    put,
    put_priced,
    settings,
    write,
)
from aero.cli.errors import note, one_line_errors

if TYPE_CHECKING:
    from aero.mpc import CostReport


def show(
    label: Label,
    model: Model = "gpt2",
    context_length: Context = None,
    vocab_size: Vocabulary = None,
    stack: StackName = "spu-2024",
    set_: Settings = None,
    network: Network = None,
    compute: Compute = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
) -> None:
    """Prices one pass by part and layer.

    Bytes of both parties, rounds (messages in sequence), homomorphic products and oblivious
    transfers; with --network also seconds. CSV has a line per operation.
    """
    with one_line_errors(ValueError, OSError):
        check_machines(network, compute)
        found = _report(label, model, context_length, vocab_size, stack, settings(set_))
        as_dict = functools.partial(found.to_dict, network, compute)
        put_priced(found, as_dict, network, compute, as_json=as_json, as_csv=as_csv, html=html)
        given = _given(model, context_length, vocab_size, stack, settings(set_))
        _advise_padding(label, given, network, compute)


def compare(
    first: Label,
    second: Annotated[str, typer.Argument(help="The one to compare with it, alike.")],
    model: Model = "gpt2",
    context_length: Context = None,
    vocab_size: Vocabulary = None,
    stack: StackName = "spu-2024",
    set_: Settings = None,
    second_stack: Annotated[
        str | None, typer.Option(help="Of the second network; default: the same.")
    ] = None,
    second_set: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Of the second network, besides --set."),
    ] = None,
    network: Network = None,
    compute: Compute = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    html: Html = None,
) -> None:
    """Compares two networks, stacks or sizes."""
    with one_line_errors(ValueError, OSError):
        check_machines(network, compute)
        both = settings(set_)
        sizes = (model, context_length, vocab_size)
        found = _report(first, *sizes, stack, both).compare(
            _report(second, *sizes, second_stack or stack, both | settings(second_set))
        )
        as_dict = functools.partial(found.to_dict, network, compute)
        put_priced(found, as_dict, network, compute, as_json=as_json, as_csv=as_csv, html=html)


def schedule(
    label: Label,
    model: Model = "gpt2",
    context_length: Context = None,
    vocab_size: Vocabulary = None,
    stack: StackName = "spu-2024",
    set_: Settings = None,
    network: Annotated[str, typer.Option(help=NETWORKS)] = "paper-testbed",
    compute: Annotated[str | None, typer.Option(help=COMPUTE)] = None,
    overlap: Annotated[
        bool, typer.Option(help="Operations, computing and sending overlap.")
    ] = True,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=TIMES",
            help="Also the minutes if a part were that many times faster, such as softmax=2; may "
            "be repeated.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for ui.perfetto.dev to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Shows when operations run, and the limiting resource.

    Both parties' processors and both directions of the link, the critical path, and the time that
    would be left without each part.
    """
    with one_line_errors(ValueError, OSError):
        from aero.mpc.cost_report import words_of
        from aero.report import to_text
        from aero.report.cost_texts import said_of, title_lines
        from aero.report.trace import trace_json

        report = _report(label, model, context_length, vocab_size, stack, settings(set_))
        latency = report.latency(network, compute)
        found = latency.schedule(overlap=overlap)
        faster = {
            name: (times, found.what_if(kind=name, times_faster=times))
            for name, times in _speedups(what_if)
        }
        if trace is not None:
            write("--trace", trace, trace_json(found))
        machines = f"network {latency.network.name}, compute {latency.compute.name}"
        about = {
            "label": report.label,
            "spec": None if report.spec is None else report.spec.to_dict(),
            "sizes": dict(report.sizes),
            "stack": report.stack,
            "stack_fields": report.stack_fields,
            "network": latency.network.to_dict(),
            "compute": latency.compute.to_dict(),
        }
        put(
            lambda: "\n".join(
                [
                    *title_lines(report),
                    machines,
                    "",
                    to_text(found),
                    *(
                        f"{seconds / 60:.2f} minutes if {name} were {times:g} times faster"
                        for name, (times, seconds) in faster.items()
                    ),
                    "",
                    *said_of(report, latency),
                ]
            ),
            lambda: (
                about
                | found.to_dict()
                | words_of(report, latency)
                | {"what_if": {name: seconds for name, (_, seconds) in faster.items()}}
            ),
            str,
            as_json=as_json,
            as_csv=False,
        )


def _speedups(given: list[str] | None) -> Iterator[tuple[str, float]]:
    seen: set[str] = set()
    for text in given or ():
        name, _, times = text.rpartition("=")
        if name in seen:
            raise ValueError(f"--what-if {name} must be given once, got it twice")
        seen.add(name)
        try:
            yield name, float(times)
        except ValueError:
            raise ValueError(f"--what-if must be PART=TIMES, got {text!r}") from None


def _advise_padding(
    label: str, given: dict[str, Any], network: str | None, compute: str | None
) -> None:
    """Says, beside the output, at which longer contexts a pass sends less, or takes less time."""
    from aero import mpc
    from aero.mpc.described_stacks import default_compute
    from aero.mpc.padding import cheaper_lengths
    from aero.mpc.simulation import network_on

    priced, described, stack = network_on(label, **given)
    compute = compute or default_compute(described)
    link = None if network is None else mpc.network_profile(network)
    for one in cheaper_lengths(priced, stack, link, mpc.compute_profile(compute)):
        note(f"advice: {one.text}")


def _report(label: str, *given: Any) -> CostReport:
    from aero import mpc

    return mpc.simulate(label, **_given(*given))


def _given(
    model: str,
    context_length: int | None,
    vocab_size: int | None,
    stack: str,
    fields: dict[str, Any],
) -> dict[str, Any]:
    """The keywords of `aero.mpc.simulate`."""
    sizes = {"context_length": context_length, "vocab_size": vocab_size}
    return {"model": model, "stack": stack, **sizes, **fields}
