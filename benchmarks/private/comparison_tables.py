"""Measured private runs as Markdown tables next to the predictions, and their place in a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from comparison import network_name, part_of

from aero.internals.atomic_files import write_bytes_atomically
from aero.tables import in_units, markdown_table

Measured = dict[str, Any]

# The load of two busy parties and the wire between them, and a little more.
_QUIET_LOAD = 5.0
_PARTS = {
    "embedding": "embedding",
    "layers": "layers",
    "head": "final norm and LM head",
    "argmax": "argmax",
}


def comparison_tables(cells: Sequence[Measured]) -> str:
    """Tables by size: bytes, seconds per link, the extra time of a slow link, savings of settings.

    Args:
        cells: from `compare_networks`; the first network is the baseline.
    """
    parts = []
    labels = list(dict.fromkeys(network_name(cell["cell"]) for cell in cells))
    ordered = sorted(cells, key=lambda cell: labels.index(network_name(cell["cell"])))
    # Sizes in the order in which they came, networks as in the first of them.
    sizes = dict.fromkeys(map(_size, cells), ())
    for size, group in (sizes | _grouped(ordered, _size)).items():
        plain = [cell for cell in group if not cell["cell"]["changes"]]
        parts.append(f"### {size}")
        if plain:
            parts.append(_bytes_table(plain))
        # One process has both parties' threads in one Python; its seconds are not theirs.
        timed = [cell for cell in plain if cell["cell"]["link"] != "memory"]
        if timed:
            parts += [_conditions(timed), _seconds_table(timed), *_added_by_links(timed)]
        if len(plain) < len(group):
            parts.append(_settings_table(group))
    return "\n\n".join(parts) + "\n"


def _bytes_table(cells: Sequence[Measured]) -> str:
    rows = []
    by_label = _grouped(cells, lambda cell: network_name(cell["cell"]))
    baseline = _sent(next(iter(by_label.values()))[0])
    for label, group in by_label.items():
        first = group[0]
        rows.append(
            [
                label,
                in_units(first["client_bytes"], "MB", 2),
                in_units(first["server_bytes"], "MB", 2),
                in_units(_sent(first), "MB", 2),
                in_units(_expected(first), "MB", 2),
                f"{_sent(first) / _expected(first):.4f}",
                f"{baseline / _sent(first):.2f}x",
                f"{first['predicted_rounds']:,.0f}",
            ]
        )
    header = ["network", "client sent, MB", "server sent, MB", "measured, MB", "predicted, MB"]
    return markdown_table([*header, "ratio", "less than the first", "rounds (predicted)"], rows)


def _seconds_table(cells: Sequence[Measured]) -> str:
    rows = []
    for link, group in _grouped(cells, lambda cell: cell["cell"]["link"]).items():
        baseline = group[0]
        for cell in group:
            used = sum(cell["cpu_seconds"].get(party, 0.0) for party in ("client", "server"))
            rows.append(
                [
                    link,
                    network_name(cell["cell"]),
                    f"{cell['seconds']:.1f}",
                    f"{cell['predicted_seconds']:.1f}",
                    f"{baseline['seconds'] / cell['seconds']:.2f}x",
                    f"{baseline['predicted_seconds'] / cell['predicted_seconds']:.2f}x",
                    f"{used:.1f}" if used else "",
                    f"{cell['predicted_compute_seconds']:.1f}",
                    f"{cell['load_before']:.0f} to {cell['load_after']:.0f}",
                ]
            )
    header = ["link", "network", "measured, s", "predicted, s", "faster than the first"]
    header += ["predicted", "CPU of both, s", "predicted computing, s", "load of the machine"]
    return markdown_table(header, rows)


def _conditions(cells: Sequence[Measured]) -> str:
    """The time, the load of the machine, and the meaning of its timings."""
    loads = [load for cell in cells for load in (cell["load_before"], cell["load_after"])]
    processors = {f"{cell['processors']} processors ({cell['processor']})" for cell in cells}
    days = sorted({cell["measured_at"][:10] for cell in cells})
    at = " and ".join(sorted({days[0], days[-1]}))
    shared = (
        "; the parties shared their processors with other work, so these seconds say what a busy "
        "machine takes"
        if max(loads) > _QUIET_LOAD
        else ""
    )
    return (
        f"Seconds: measured {at} on {' or '.join(sorted(processors))} for both parties, "
        f"load of the machine {min(loads):.0f} to {max(loads):.0f}{shared}."
    )


def _added_by_links(cells: Sequence[Measured]) -> list[str]:
    """Tables per wire: its seconds minus those over loopback, so that computing cancels."""
    links = _grouped(cells, lambda cell: cell["cell"]["link"])
    loopback = {network_name(cell["cell"]): cell for cell in links.get("tcp", ())}
    tables = []
    for link, group in links.items():
        pairs = [(loopback.get(network_name(cell["cell"])), cell) for cell in group]
        if link == "tcp" or not all(base for base, _ in pairs):
            continue
        header, rows = ["part"], [[name] for name in [*_PARTS.values(), "all"]]
        for base, cell in pairs:
            label = network_name(cell["cell"])
            header += [f"{label}: rounds (predicted)", "measured, s", "predicted, s"]
            assert base is not None
            for row, numbers in zip(rows, _added(base, cell), strict=True):
                row += numbers
        tables.append(f"What `{link}` adds to loopback:\n\n{markdown_table(header, rows)}")
    return tables


def _added(base: Measured, cell: Measured) -> list[list[str]]:
    """Rounds and seconds of each part and of all."""
    seconds = dict.fromkeys(_PARTS, 0.0)
    for sign, measured in ((1, cell), (-1, base)):
        for piece in measured["pieces"]:
            seconds[part_of(piece["name"])] += sign * piece["seconds"]
    parts = [cell["predicted_parts"][name] for name in _PARTS]
    rows = [
        (part["rounds"], measured, part["wire_seconds"])
        for part, measured in zip(parts, seconds.values(), strict=True)
    ]
    rows.append(tuple(sum(column) for column in zip(*rows, strict=True)))
    return [[f"{rounds:,.0f}", f"{s:.1f}", f"{wire:.1f}"] for rounds, s, wire in rows]


def _settings_table(cells: Sequence[Measured]) -> str:
    rows = []
    for label, group in _grouped(cells, lambda cell: network_name(cell["cell"])).items():
        plain = next((cell for cell in group if not cell["cell"]["changes"]), None)
        for cell in group:
            changes = cell["cell"]["changes"]
            if not changes or plain is None:
                continue
            named = ", ".join(f"{key}={value}".lower() for key, value in changes.items())
            rows.append(
                [
                    label,
                    f"`{named}`",
                    in_units(_sent(cell), "MB", 2),
                    in_units(_expected(cell), "MB", 2),
                    f"{_sent(cell) / _expected(cell):.4f}",
                    _saving(_sent(plain), _sent(cell)),
                    _saving(_expected(plain), _expected(cell)),
                ]
            )
    header = ["network", "setting", "measured, MB", "predicted, MB", "ratio"]
    return markdown_table([*header, "measured change", "predicted change"], rows)


def _size(cell: Measured) -> str:
    size = cell["cell"]
    return (
        f"L={size['num_layers']}, C={size['width']}, H={size['num_heads']}, "
        f"V={size['vocab_size']:,}, T={size['length']}"
    )


def _grouped(cells: Iterable[Measured], key: Any) -> dict[str, list[Measured]]:
    groups: dict[str, list[Measured]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


def _sent(cell: Measured) -> int:
    return int(cell["client_bytes"] + cell["server_bytes"])


def _expected(cell: Measured) -> float:
    return float(cell["predicted_client_bytes"] + cell["predicted_server_bytes"])


def _saving(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %"


def write_between_marks(document: Path, name: str, text: str) -> None:
    r"""Puts text where the document has a place for it; a new document is that place alone.

    Args:
        document: Markdown; made if missing.
        name: of the place, which lies between `<!-- name -->` and `<!-- end of name -->`.
        text: the new text.

    Raises:
        ValueError: the document has no such place, or more than one.

    Example:
        >>> from pathlib import Path
        >>> from comparison_tables import write_between_marks
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Path(folder) / "page.md"
        ...     _ = page.write_text("Before.\n<!-- it -->\nold\n<!-- end of it -->\nAfter.\n")
        ...     write_between_marks(page, "it", "new")
        ...     page.read_text()
        'Before.\n<!-- it -->\nnew\n<!-- end of it -->\nAfter.\n'
    """
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before = f"{start}{end}\n"
    if document.exists():
        before = document.read_text(encoding="utf-8")
    head, opened, rest = before.partition(start)
    _, closed, tail = rest.partition(end)
    if not (opened and closed) or start in tail:
        raise ValueError(
            f"private: {document} must have one place for the results, between {start.strip()!r} "
            f"and {end!r}"
        )
    written = f"{head}{start}{text.rstrip()}\n{end}{tail}"
    write_bytes_atomically(document, written.encode())
