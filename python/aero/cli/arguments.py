"""Arguments that commands share, and how results of costs go out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from aero.cli.errors import note, say
from aero.internals.atomic_files import write_bytes_atomically
from aero.internals.errors import UserError


def no_nan(value: float | None) -> float | None:
    """Refuses NaN, which lies within all bounds: it is neither below one nor above it."""
    if value != value:
        raise typer.BadParameter("expected a number, got nan")
    return value


# The seeds of NumPy's generators.
LAST_SEED = 2**32 - 1


# Help must not wait for the native library, which knows the other names too.
_DESCRIBED = sorted(path.stem for path in Path(__file__).parents[1].glob("data/stacks/*.yaml"))
STACKS = (
    "spu-2024, spu-0.9.5, openbumblebee, spu-semi2k, spu-aby3, spu-securenn, aero-optimized, "
    f"aero-optimized-generation, aero-approximate, {', '.join(_DESCRIBED)}, or the path of a YAML "
    "or JSON description."
)
NETWORKS = (
    "paper-testbed, lan-1gbps, wan-400mbps or wan-100mbps, with changes: "
    "'wan-100mbps,uplink_mbps=20,software_seconds=0.006'."
)
COMPUTE = (
    "paper-testbed, spu-epyc or none, with changes: 'paper-testbed,threads=8'. Default: "
    "paper-testbed, or spu-epyc with a stack of shares, whose arithmetic it alone times."
)

Label = Annotated[
    str,
    typer.Argument(
        help="Label, such as 'SM+ScFuFFN', a published preset, such as gpt2-medium, a name "
        "in the local cache of Hugging Face, or a folder with config.json of transformers, "
        "network.json of `aero export`, or a run."
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="Size preset: gpt2, gpt2-18l, gpt2-medium, gpt2-large, gpt2-xl, pythia-70m, -160m, "
        "-410m, -1b, -1.4b, -2.8b, -6.9b or -12b, mini or tiny."
    ),
]
Context = Annotated[
    int | None,
    typer.Option(help="T, tokens; default: 128, or all of a shorter model.", min=1, max=1 << 24),
]
Vocabulary = Annotated[
    int | None, typer.Option(help="V, tokens it knows; default: the preset's.", min=1, max=1 << 28)
]
StackName = Annotated[str, typer.Option(help=STACKS)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="An optimization or another field of stack or network, such as mul_share=true or "
        "num_layers=6; may be repeated. `aero cost optimizations` lists the optimizations.",
    ),
]
Network = Annotated[str | None, typer.Option(help=f"Also the time on: {NETWORKS}")]
Compute = Annotated[str | None, typer.Option(help=f"Machines behind that time: {COMPUTE}")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]

AsCsv = Annotated[bool, typer.Option("--csv", help="As CSV.")]
Html = Annotated[Path | None, typer.Option(help="Also write a page to this file.")]


def settings(given: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """FIELD=VALUE as keywords; errors name the option that they were given by."""
    found = value_lists(given, option)
    for name, values in found.items():
        if len(values) != 1:
            raise UserError(f"{option} {name} must have one value, got {len(values)}")
    return {name: values[0] for name, values in found.items()}


def value_lists(given: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """FIELD=V1,V2 as keywords: true, false, integers, decimals, else text."""
    found: dict[str, Any] = {}
    for setting in given or ():
        name, equals, values = setting.partition("=")
        if not equals or not values or not name.isidentifier():
            raise UserError(f"{option} must be FIELD=VALUE, got {setting!r}")
        if name in found:
            raise UserError(f"{option} {name} must be given once, got it twice")
        found[name] = [_value(value) for value in values.split(",")]
    return found


def check_machines(networks: object, compute: str | None) -> None:
    """Machines without a network would be ignored in silence."""
    if not networks and compute is not None:
        raise ValueError(f"--compute needs a --network to tell the time on, got {compute!r} alone")


def put(
    text: Callable[[], str],
    as_dict: Callable[[], dict[str, Any]],
    csv: Callable[[], str],
    *,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Prints a result in the form asked for."""
    if as_json and as_csv:
        raise ValueError("--json and --csv must not both be given")
    if as_json:
        say(json.dumps(as_dict(), indent=2))
    else:
        say(csv().rstrip("\n") if as_csv else text())


def put_priced(
    found: Any,
    as_dict: Callable[[], dict[str, Any]],
    network: str | None = None,
    compute: str | None = None,
    *,
    as_json: bool,
    as_csv: bool,
    html: Path | None = None,
) -> None:
    """Prints a result that `aero.report` can show on these machines, and writes its page."""
    from aero.report import to_csv, to_text

    put(
        lambda: to_text(found, network, compute),
        as_dict,
        lambda: to_csv(found, network, compute),
        as_json=as_json,
        as_csv=as_csv,
    )
    if html is not None:
        from aero.report import to_html

        write("--html", html, to_html(found, network, compute))


def write(option: str, path: Path, content: str) -> None:
    """Writes a file that an option names, and says so on standard error."""
    try:
        write_bytes_atomically(path, content.encode())
    except OSError as error:
        raise ValueError(
            f"{option} must be a file that can be written, got {path}: {error.strerror}"
        ) from error
    note(f"wrote {path}")


def _value(text: str) -> bool | int | float | str:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
