"""Many networks on many stacks at once: grids, and the rows worth a look."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aero import _core
from aero.architecture import ArchitectureSpec
from aero.internals.pareto import pareto_front
from aero.mpc.cost import Cost, FieldValue
from aero.mpc.described_stacks import StackDescription, default_compute, stack_description
from aero.mpc.given_networks import named_network, preset_named
from aero.mpc.priced_network import words_dict
from aero.mpc.profiles import ComputeProfile, NetworkProfile, compute_profile, network_profile
from aero.mpc.sweep_axes import axis_values, by_gelu, kinds_of, require_once, several, split_axes
from aero.mpc.sweep_given import GivenPrice, each_network, has_label, price_given, shown_name
from aero.reading import one_line

Stack = str | Path | StackDescription


@dataclass(frozen=True)
class SweepRow:
    """One combination.

    Attributes:
        label: The network.
        values: The other varied values, by name: sizes, stack, fields of the stack.
        cost: The sum over its operations.
        seconds: Closed-form time per network profile.
        perplexity: Measured, where a run folder gave it.
        run: Name of that run folder.
    """

    label: str
    values: Mapping[str, FieldValue]
    cost: Cost
    seconds: Mapping[str, float]
    perplexity: float | None = None
    run: str | None = None

    @property
    def comm_gb(self) -> float:
        """Gigabytes of both parties."""
        return self.cost.comm_bytes / 1e9

    def objective(self, name: str) -> float | None:
        """A quantity to be made small: see `SweepResult.pareto`."""
        if name == "comm_gb":
            return self.comm_gb
        if name == "rounds":
            return self.cost.rounds
        if name == "perplexity":
            return self.perplexity
        return self.seconds[name]

    def to_dict(self, *, dealer: bool = False) -> dict[str, Any]:
        """One flat mapping; `dealer_gb` where a dealer sends something, or `dealer` says so."""
        row: dict[str, Any] = {"label": self.label, **self.values, "comm_gb": self.comm_gb}
        if dealer or self.cost.dealer_bytes:
            row["dealer_gb"] = self.cost.dealer_bytes / 1e9
        row["rounds"] = self.cost.rounds
        row |= {f"seconds {name}": value for name, value in self.seconds.items()}
        if self.run is not None:
            row |= {"perplexity": self.perplexity, "run": self.run}
        return row


@dataclass(frozen=True)
class SweepResult:
    """The rows of a sweep, in the order of its loops.

    Attributes:
        rows: One per combination that exists.
        skipped: Why the others do not: values and reason.
        notes: What the prices leave out or take for granted.
        unchecked: What no publication or measurement confirms.
        trust: Whom the stacks' users trust; empty where they differ, which `notes` say.
        lowerings: Part -> the lines of a program that the prices are of, with stacks that differ.
    """

    rows: tuple[SweepRow, ...]
    skipped: tuple[tuple[dict[str, FieldValue], str], ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    trust: str = ""
    lowerings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def pareto(self, *objectives: str) -> SweepResult:
        """The rows that no other row beats in all objectives at once.

        Args:
            *objectives: "comm_gb", "rounds", "perplexity" or the name of a network profile (its
                seconds); smaller is better. Rows without a perplexity are left out where it is one.

        Raises:
            ValueError: For no objective or an unknown one.
        """
        known = ["comm_gb", "rounds", "perplexity", *(self.rows[0].seconds if self.rows else ())]
        if not objectives or not set(objectives) <= {*known}:
            raise ValueError(f"pareto: objectives must be among {known}, got {list(objectives)}")
        values = [[row.objective(name) for name in objectives] for row in self.rows]
        points = [[math.nan if one is None else one for one in row] for row in values]
        front = tuple(self.rows[i] for i in pareto_front(points))
        return replace(self, rows=front)

    def flat_rows(self) -> list[dict[str, Any]]:
        """The rows as flat mappings, all with what a dealer sends where one has it."""
        dealer = any(row.cost.dealer_bytes for row in self.rows)
        return [row.to_dict(dealer=dealer) for row in self.rows]

    def to_dataframe(self) -> Any:
        """The rows as a `pandas.DataFrame`, a column per value, count and network.

        Raises:
            ValueError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ValueError(
                "to_dataframe: pandas must be installed (pip install pandas); to_dict()['rows'] "
                "needs nothing"
            ) from None
        counts = [row.cost.to_dict() for row in self.rows]
        pairs = zip(self.flat_rows(), counts, strict=True)
        return pandas.DataFrame([row | cost for row, cost in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "rows": self.flat_rows(),
            "skipped": [{"values": values, "reason": reason} for values, reason in self.skipped],
            **words_dict(self.notes, self.unchecked, self.trust, self.lowerings),
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<SweepResult of {len(self.rows)} combinations>"


def sweep(
    labels: Any = (),
    *,
    runs: Iterable[str | Path] = (),
    model: str = "gpt2",
    stacks: Sequence[Stack] = ("spu-2024",),
    networks: Sequence[str | NetworkProfile] = (),
    compute: str | None = None,
    skip: bool = False,
    **axes: Sequence[FieldValue] | FieldValue,
) -> SweepResult:
    """Computes the totals of every combination; ten thousand take less than a second.

    Args:
        labels: One network or several; a label has the model's sizes and T = 128, a published name
            its own sizes. All else that `simulate` takes too, which varies in `context_length`,
            `vocab_size` and fields of the stack alone and takes as long as `simulate`.
        runs: Run folders, or folders of them: networks at their own sizes, with the perplexity
            that `aero evaluate` measured; at other sizes without it.
        model: The preset that gives the labels' sizes; an error without labels.
        stacks: Stacks as in `simulate`.
        networks: Network profiles to time each combination on, closed form.
        compute: The compute profile behind those times; default: `spu-epyc` for all if a stack is
            one of shares, else `paper-testbed`.
        skip: Leave out combinations that do not exist, such as heads that do not divide the width,
            and say why in `skipped`; otherwise they are an error.
        **axes: Fields of the network or of the stack, each with one value or several:
            `context_length=[128, 256]`, `num_heads=[6, 12]`, `exp_squarings=[5, 8]`.

    Raises:
        ValueError: Names the unknown entry, or the one out of range.

    Example:
        >>> from aero import mpc
        >>> found = mpc.sweep(["SM+LN+G", "SM+ScFuFFN"], context_length=[128, 256])
        >>> [round(row.comm_gb, 1) for row in found.rows]
        [25.3, 58.5, 6.3, 20.6]
    """
    stacks, networks, runs = map(several, (stacks, networks, runs))
    labelled = _of_labels(labels, model)
    require_once("labels", [network.spec for network in labelled])
    require_once("stacks", stacks)
    require_once("networks", networks)
    if model != "gpt2" and all(network.preset is None for network in labelled):
        raise ValueError(f"sweep: model is for labels; runs and specs have sizes, got {model}")
    networks_found = [*labelled, *_of_runs(runs)]
    if not networks_found:
        raise ValueError("sweep: labels or runs must name at least one network")
    described = [stack_description(stack) for stack in stacks]
    if not described:
        raise ValueError("sweep: stacks must name at least one stack")
    values = {name: axis_values(name, value) for name, value in axes.items()}
    stack_axes, spec_axes = split_axes(values, described)
    links = [network_profile(network) for network in networks]
    variants = [
        (stack, dict(zip(stack_axes, chosen, strict=True)))
        for stack in described
        for chosen in itertools.product(*stack_axes.values())
    ]
    priced = by_gelu(variants, {network.exact_gelu for network in networks_found})
    machines = compute_profile(compute or default_compute(*described))
    results = _priced(networks_found, spec_axes, variants, priced, links, machines)
    sizes = [
        dict(zip(spec_axes, chosen, strict=True))
        for chosen in itertools.product(*spec_axes.values())
    ]
    rows = []
    skipped = []
    combinations = itertools.product(networks_found, sizes, variants)
    for (network, size, (stack, fields)), found in zip(combinations, results, strict=True):
        values_here = {**size, "stack": stack.name, **fields}
        if found.total is None or found.error:
            skipped.append(({"label": network.label, **values_here}, found.error))
            continue
        report = found.report if isinstance(found, GivenPrice) else None
        rows.append(
            SweepRow(
                network.label or (report.label if report else ""),
                values_here,
                found.total,
                {
                    link.name: time * 1e-9
                    for link, time in zip(links, found.nanoseconds, strict=True)
                },
                network.perplexity_at(size),
                network.run,
            )
        )
    if skipped and not skip:
        chosen, reason = skipped[0]
        raise ValueError(
            f"sweep: {len(skipped)} combinations do not exist, first {chosen}: {reason}"
        )
    from aero.mpc.sweep_words import Swept, sweep_words  # of no other price

    words = sweep_words(
        [
            Swept(
                kinds_of(network.spec, spec_axes), network.preset, network.exact_gelu,
                [(stack, one) for (stack, _), one in zip(variants, priced[network.exact_gelu],
                                                         strict=True)],
            )
            for network in networks_found
            if has_label(network.spec)
        ],
        [one.report for one in results if isinstance(one, GivenPrice) and one.report is not None],
        spec_axes,
        links,
        machines,
        has_dealer=any(row.cost.dealer_bytes for row in rows),
    )  # fmt: skip
    return SweepResult(tuple(rows), tuple(skipped), **words)


def _priced(
    networks: Sequence[_Network],
    axes: dict[str, list[FieldValue]],
    variants: Sequence[tuple[StackDescription, Mapping[str, FieldValue]]],
    stacks: Mapping[bool, list[_core.Stack]],
    links: Sequence[NetworkProfile],
    machines: ComputeProfile,
) -> list[_core.SweepResult | GivenPrice]:
    """Every combination, in the order of the loops; neighbours with a label in one go."""
    found: list[_core.SweepResult | GivenPrice] = []
    alike = itertools.groupby(networks, lambda one: (one.exact_gelu, has_label(one.spec)))
    for (exact, labels_alone), group in alike:
        specs = [network.spec for network in group]
        if labels_alone:
            link_values = [link.values() for link in links]
            found += _core.sweep(
                specs, list(axes.items()), stacks[exact], link_values, machines.values()
            )
        else:
            for one in specs:
                found += price_given(one, axes, variants, links, machines)
    return found


@dataclass(frozen=True)
class _Network:
    spec: Any  # or what it is given by, if it has no label
    label: str
    preset: str | None = None
    exact_gelu: bool = False
    perplexity: float | None = None
    run: str | None = None

    def perplexity_at(self, size: Mapping[str, FieldValue]) -> float | None:
        """The measured perplexity, if the network is the measured one in every field."""
        if self.perplexity is None or not size:
            return self.perplexity
        own = self.spec.to_dict()
        same = all(own.get(name) == value for name, value in size.items())
        return self.perplexity if same else None


def _of_labels(labels: Any, model: str) -> list[_Network]:
    found = []
    for label in each_network(labels):
        if not has_label(label):
            found.append(_Network(label, shown_name(label)))
        elif isinstance(label, ArchitectureSpec):
            found.append(_Network(label, label.label))
        else:
            spec, preset, exact = named_network(label, model, context_length=128)
            found.append(_Network(spec, preset_named(label) or spec.label, preset, exact))
    return found


def _of_runs(folders: Iterable[str | Path]) -> list[_Network]:
    """The finished runs among and below the folders that have a measured perplexity, each once."""
    files: dict[Path, Path] = {}
    for folder in map(Path, folders):
        here = sorted({*folder.glob("run.json"), *folder.glob("**/run.json")})
        if not here:
            raise ValueError(f"sweep: runs must be run folders, found no run.json in {folder}")
        for file in here:
            files.setdefault(file.resolve(), file)
    from aero.internals import run_files  # needs the extra `train`
    from aero.internals.records import read_record

    found, compared = [], []
    for file in files.values():
        evaluation = file.with_name("evaluation.json")
        if not evaluation.is_file():
            continue
        try:
            info = read_record(file, run_files.RunInfo)
            spec = ArchitectureSpec.from_dict(info.spec)
            values = read_record(evaluation, run_files.Evaluation)
            if values.perplexity is None:
                raise ValueError(f"{evaluation}: perplexity: expected a number, got null")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"sweep: {file.parent} is no run folder: {one_line(error)}") from error
        folder = file.parent
        found.append(_Network(spec, spec.label, perplexity=values.perplexity, run=folder.name))
        compared.append(run_files.Evaluated(str(folder), info.corpus, spec.context_length, values))
    unequal = run_files.unequal_evaluations(compared)
    if unequal is not None:
        raise ValueError(f"sweep: {unequal}")
    return found
