"""The rates of this machine for a private run, fitted to two networks of one layer.

Each network runs between two processes, as a private run does; what its pieces took is laid on what
the simulator counts for them. Computing is fitted to processor seconds, which other work of the
machine changes little; waiting, which is all else, counts only where the machine was quiet.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.internals.errors import extra
from aero.internals.machine import processor
from aero.mpc.cost import Cost
from aero.mpc.simulation import described_spec
from aero.private.parties.two_processes import generate_over
from aero.private.prediction import EXTENSION_OTS, extensions, predicted_costs
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder

with extra("private"):
    import msgspec


@dataclass(frozen=True)
class NetworkCell:
    """One forward pass of a network with random weights.

    Attributes:
        label: such as "SM+LN+G".
        model: preset that gives the sizes.
        sizes: fields of `ArchitectureSpec` instead of the preset's.
        tokens: T of the pass.
    """

    label: str
    model: str
    sizes: dict[str, int]
    tokens: int

    @property
    def spec(self) -> ArchitectureSpec:
        """The network."""
        return ArchitectureSpec.from_label(self.label, model=self.model, **self.sizes)

    @property
    def name(self) -> str:
        """Such as "SM+LN+G, mini, T=128"."""
        sizes = [f"{name}={value:,}" for name, value in self.sizes.items()]
        return ", ".join([self.label, self.model, *sizes, f"T={self.tokens}"])


# The first has comparisons and lookups of tables. The second has products, and in its head many
# automorphisms for few products: without such a piece the fit cannot tell the two apart, and with
# 256 words instead of 16 it predicted twice the seconds.
NETWORKS = (
    NetworkCell("SM+LN+G", "mini", {"num_layers": 1, "vocab_size": 16}, 32),
    NetworkCell("SM+ScFuFFN", "gpt2", {"num_layers": 1, "vocab_size": 16}, 16),
)
# Others' share of the processors up to which waiting says something of the link.
QUIET_PROCESSORS = 0.25
# A piece's variance is taken as its seconds, at least these, as the sum of pieces is predicted.
_LEAST_SECONDS = 0.3
_MOST_MBPS = 1e6


@dataclass(frozen=True)
class MeasuredPiece:
    """A piece of a pass.

    Attributes:
        network: name.
        piece: name.
        cost: as the simulator counts it.
        extensions: Ferret extensions that it made.
        seconds: on the clock.
        cpu_seconds: of the client's process; the server's works as much.
    """

    network: str
    piece: str
    cost: Cost
    extensions: int
    seconds: float
    cpu_seconds: float


class FittedPiece(msgspec.Struct, frozen=True):
    """A measured piece beside what the rates give it."""

    network: str
    piece: str
    seconds: float
    cpu_seconds: float
    fitted_cpu_seconds: float
    extensions: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Profiles of a machine and its link.

    Attributes:
        source: in words.
        network: fields of `aero.mpc.NetworkProfile`.
        compute: fields of `aero.mpc.ComputeProfile`.
        quiet: whether waiting counts.
        mean_miss: of the networks' processor seconds, as a fraction.
        pieces: all.
    """

    source: str
    network: dict[str, bool | int | float | str]
    compute: dict[str, float]
    quiet: bool
    mean_miss: float
    pieces: list[FittedPiece]


class Calibration(Rates, frozen=True, kw_only=True):
    """The file of `aero private calibrate`."""

    machine: str
    processors: int | None
    processors_taken_by_others: float
    load: float
    measured_at: str

    def to_dict(self) -> dict[str, object]:
        """Returns JSON values."""
        values: dict[str, object] = msgspec.to_builtins(self)
        return values


def calibrate(
    export: Callable[[NetworkCell, Path], None],
    say: Callable[[str], None] = lambda line: None,
    python: Path | None = None,
) -> Calibration:
    """Measures and fits; takes a minute of two processors.

    Args:
        export: writes a network with random weights to a folder, as `aero export` does.
        say: called with each network's name and seconds.
        python: of the private environment.

    Raises:
        PartyError: a run failed.
    """
    settings = PrivateSettings()
    pieces: list[MeasuredPiece] = []
    clock = _Processors()
    for number, cell in enumerate(NETWORKS, 1):
        with temporary_folder() as folder:
            export(cell, folder)
            tokens = [index % 7 for index in range(cell.tokens)]
            found = generate_over("tcp", folder, tokens, 1, settings, python=python)
        costs = predicted_costs(described_spec(cell.spec), cell.tokens, settings)
        for call in found.calls[0]:
            cost = costs[call.name]
            made = extensions(cost, call.traffic.comm_bytes)
            pieces.append(
                MeasuredPiece(cell.name, call.name, cost, made, call.seconds, call.cpu_seconds)
            )
        taken = sum(call.seconds for call in found.calls[0])
        say(f"{number} of {len(NETWORKS)}: {cell.name}: {taken:.1f} s")
    others = clock.taken_by_others()
    return Calibration(
        **msgspec.structs.asdict(fitted(pieces, quiet=others <= QUIET_PROCESSORS)),
        machine=processor(),
        processors=os.cpu_count(),
        processors_taken_by_others=round(others, 2),
        load=round(os.getloadavg()[0], 2),
        measured_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    )


def fitted(pieces: Sequence[MeasuredPiece], *, quiet: bool) -> Rates:
    """Profiles of machine and link that explain the pieces best.

    Args:
        pieces: measured.
        quiet: whether the clock tells waiting from other work; else waiting counts as nothing.
    """
    used = np.array([piece.cpu_seconds for piece in pieces])
    # Shares times shares keep both parties busy with half of the products each.
    columns: dict[str, list[Any]] = {
        "ct_pt_product_seconds": [piece.cost.ct_pt_products / 2 for piece in pieces],
        "automorphism_seconds": [piece.cost.automorphisms / 2 for piece in pieces],
        "ot_seconds": [piece.cost.ots for piece in pieces],
        "extension_seconds": [piece.extensions for piece in pieces],
        "rounds": [piece.cost.rounds for piece in pieces],
        # Element-wise ciphertexts send most bytes: the two cannot be told apart, and bytes are
        # counted more exactly.
        "bytes": [piece.cost.comm_bytes for piece in pieces],
    }
    rates = _not_negative(columns, used)
    computed = np.array(list(columns.values())).T @ np.array(list(rates.values()))
    used_per = {name: rates.pop(name) for name in ("rounds", "bytes")}
    # On average every OT takes its part of an extension.
    rates["ot_seconds"] += rates.pop("extension_seconds") / EXTENSION_OTS
    rates["embedding_product_seconds"] = rates["ct_pt_product_seconds"]
    compute = {"threads": 1, **rates}
    if quiet:
        for name, waited in _waits(pieces).items():
            used_per[name] += waited
    mbps = min(_MOST_MBPS, 8e-6 / max(used_per["bytes"], math.ulp(0)))
    network = mpc.NetworkProfile(
        mbps, mbps, 0.0, full_duplex=False, software_seconds=used_per["rounds"]
    )
    names = np.array([piece.network for piece in pieces])
    misses = [
        abs(computed[names == name].sum() / used[names == name].sum() - 1)
        for name in dict.fromkeys(names)
    ]
    waiting = "waiting counted" if quiet else "on a busy machine: waiting is left out"
    return Rates(
        source=f"calibrated on {processor()} over loopback, {waiting}",
        network=dict(network.values()),
        compute=compute,
        quiet=quiet,
        mean_miss=float(np.mean(misses)),
        pieces=[
            FittedPiece(
                piece.network,
                piece.piece,
                round(piece.seconds, 3),
                round(piece.cpu_seconds, 3),
                round(float(fit), 3),
                piece.extensions,
            )
            for piece, fit in zip(pieces, computed, strict=True)
        ],
    )


def _waits(pieces: Sequence[MeasuredPiece]) -> dict[str, float]:
    """Seconds per round and per byte, besides computing."""
    waited = np.array([piece.seconds - piece.cpu_seconds for piece in pieces])
    columns: dict[str, list[Any]] = {
        "rounds": [piece.cost.rounds for piece in pieces],
        "bytes": [piece.cost.comm_bytes for piece in pieces],
    }
    taken = np.array([piece.seconds for piece in pieces])
    return _not_negative(columns, np.maximum(waited, 0), taken)


def _not_negative(
    columns: dict[str, list[Any]], seconds: NDArray[Any], scale: NDArray[Any] | None = None
) -> dict[str, float]:
    """Rates >= 0 by least squares, where the variance is the scale, by default the seconds."""
    with extra("private"):
        from scipy.optimize import nnls

    weights = np.maximum(seconds if scale is None else scale, _LEAST_SECONDS) ** -0.5
    matrix = np.array(list(columns.values()), float).T * weights[:, None]
    # Counts go from hundreds to millions.
    sizes = np.maximum(np.abs(matrix).max(axis=0), math.ulp(0))
    rates, _ = nnls(matrix / sizes, seconds * weights)
    return {name: float(rate) for name, rate in zip(columns, rates / sizes, strict=True)}


def processors_taken_by_others() -> float:
    """How many processors other work keeps busy, over a second in which this process waits."""
    clock = _Processors()
    time.sleep(1.0)
    return clock.taken_by_others()


class _Processors:
    """How many processors others keep busy, besides this process and its children that ended."""

    def __init__(self) -> None:
        self._start, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def taken_by_others(self) -> float:
        """The average since the start; NaN where the system does not say."""
        elapsed = time.monotonic() - self._start
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return max(0.0, others) / elapsed


def _busy_seconds() -> float:
    """The busy seconds of all processors and all processes."""
    # user nice system idle iowait irq softirq steal
    counts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(int(count) for place, count in enumerate(counts) if place not in {3, 4})
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
