"""Targets as data: the networks of a table or figure of the paper, and its claims about them.

The paper is version 2 of arXiv 2410.13060.

The files are `benchmarks/paper/data/*.yaml`:

    table2:
      title: GPT-2 with fewer nonlinearities
      paper: Table 2                    # where in the paper
      rows: {table: 2}                  # the rows of `aero.paper`, or a list:
      # rows:
      #   - SM+G                        # a label, or
      #   - {label: SM+R, name: ..., model: gpt2, dataset: codeparrot, context_length: 128,
      #      settings: {optimizer.learning_rate: 2e-3}, tokens_factor: 1, paper: {perplexity: 2.94}}
      baseline: SM+LN+G                 # the label that `change` is relative to
      show: [perplexity, share_highest] # statistics, columns of the table
      figures: [quarters, loss]
      claims:
        - claim: ReLU is better than GELU.
          where: Section 3.1
          holds_if: "perplexity: SM+R < SM+G"   # or a list that must hold together

Further keys: `seeds: 1` of a row that wants fewer or more runs than its scale, `start_from: NAME`
and `distill_from: NAME` of a row that starts or learns from another one's networks, `scales:
[mini]` of a target that does not exist at the others, `rates: [1e-3, 2e-3]` of a target whose rows
are each trained at the best of these learning rates, `trial_seeds: 2` of one whose rates are chosen
by the mean perplexity of two seeds, `widen_rates: true` of one that tries the next rate too, by a
factor of two, while a row's best is at an end of those it tried, `groups: {GROUP: [NAME, ...]}` of
rows that claims compare with together, and `flops_of: NAME` of a row that gets as many tokens as
bring its training FLOPs, its teacher's included, to those of another row, `rate_of: NAME` of a row
that is trained at the rate found for another row in place of trials of its own, `steps: [NAME,
...]` of rows that are one change away from the one before, `first_seed: 5` of a target whose seeds
count from there, as earlier ones were seen before its claims. How conditions read is in
`benchmarks.paper.claims`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from aero.internals.errors import TrainingError
from aero.mpc.other_words import nearest
from aero.paper import paper_tables
from aero.reading import parse_yaml
from benchmarks.paper.claims import Claim, known_row, read_claim, refuse_unknown

#: The setting that `rates` vary.
RATE = "optimizer.learning_rate"
_ROW_KEYS = {
    "name", "label", "model", "dataset", "context_length", "settings", "tokens_factor", "seeds",
    "start_from", "distill_from", "paper", "flops_of", "rate_of",
}  # fmt: skip
_TARGET_KEYS = {
    "title",
    "paper",
    "rows",
    "baseline",
    "show",
    "figures",
    "claims",
    "sweep",
    "scales",
    "rates",
    "trial_seeds",
    "widen_rates",
    "groups",
    "steps",
    "first_seed",
}


@dataclass(frozen=True)
class Row:
    """One network of a target.

    Attributes:
        name: as tables and claims call it.
        label: the paper's label, at the paper's depth.
        model: `gpt2`, `gpt2-18l` or `pythia-70m`; the scale gives the sizes.
        dataset: `codeparrot` or `languini`, likewise.
        context_length: T.
        settings: of the recipe, `section.key` -> value.
        tokens_factor: times the scale's training tokens.
        seeds: runs of this row, and the most that are made on request; None takes the scale's.
        start_from: name of the row whose networks these start from, seed by seed; None starts with
            random weights.
        distill_from: name of the row whose networks teach these, seed by seed; None without.
        paper: the paper's numbers, by statistic.
        flops_of: name of the row whose training FLOPs this one spends, in tokens of its own; None
            takes the scale's tokens.
        rate_of: name of the row whose best rate this one takes, where the target tries rates; None
            tries its own.
    """

    name: str
    label: str
    model: str = "gpt2"
    dataset: str = "codeparrot"
    context_length: int = 128
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokens_factor: int = 1
    seeds: int | None = None
    start_from: str | None = None
    distill_from: str | None = None
    paper: Mapping[str, float] = field(default_factory=dict)
    flops_of: str | None = None
    rate_of: str | None = None

    @property
    def origins(self) -> dict[str, str]:
        """`start_from` and `distill_from`, where it has them -> name of the row."""
        named = {"start_from": self.start_from, "distill_from": self.distill_from}
        return {way: name for way, name in named.items() if name is not None}

    @property
    def setting(self) -> str:
        """Sizes, text, length and tokens: rows of one setting may be compared seed by seed."""
        budget = self.tokens_factor if self.flops_of is None else f"FLOPs of {self.flops_of}"
        return f"{self.model} {self.dataset} {self.context_length} {budget}"


@dataclass(frozen=True)
class Target:
    """A table or figure.

    Attributes:
        name: such as `table2`.
        title: its content.
        paper: where it stands in the paper.
        rows: its networks.
        show: statistics, in order.
        claims: the paper's statements about it.
        figures: kinds of figure, see `benchmarks.paper.figures`.
        baseline: label that changes are relative to, among rows of equal sizes; None without.
        sweep: `{setting, name}` where rows differ in one number; None otherwise.
        scales: where it exists; None is everywhere.
        rates: learning rates that the first seeds try for every row, rising; empty leaves the
            recipe's.
        trial_seeds: how many seeds try them, from 1 on; the seeds after these judge.
        widen_rates: whether a row whose best rate is at an end of those that it tried tries the
            next one, by a factor of two.
        steps: rows, each one change away from the one before, whose savings are told apart.
        first_seed: the first of its seeds, where it tries no rates.
    """

    name: str
    title: str
    paper: str
    rows: tuple[Row, ...]
    show: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    figures: tuple[str, ...] = ()
    baseline: str | None = None
    sweep: Mapping[str, str] | None = None
    scales: tuple[str, ...] | None = None
    rates: tuple[float, ...] = ()
    trial_seeds: int = 1
    widen_rates: bool = False
    steps: tuple[str, ...] = ()
    first_seed: int = 1

    def exists_at(self, scale: str) -> bool:
        """True if there are runs of a scale of that name."""
        return self.scales is None or scale in self.scales

    def baseline_of(self, row: Row) -> Row | None:
        """The first baseline of a row's model, data, length and tokens or FLOPs; None without."""
        for other in self.rows:
            is_alike = other.setting == row.setting or other.name == row.flops_of
            if is_alike and other.label == self.baseline:
                return other
        return None


def target_names() -> list[str]:
    """Returns the names of all targets, tables first, in the paper's order.

    Example:
        >>> from benchmarks.paper.targets import target_names
        >>> target_names()[:3]
        ['table2', 'table3', 'table4']
    """
    return sorted(_descriptions(), key=lambda name: (not name.startswith("table"), _number(name)))


def load_target(name: str) -> Target:
    """Returns a target.

    Args:
        name: one of `target_names()`.

    Raises:
        TrainingError: no such target, or its description is wrong.

    Example:
        >>> from benchmarks.paper.targets import load_target
        >>> [row.label for row in load_target("figure6").rows]
        ['SM']
    """
    known = _descriptions()
    if name not in known:
        raise TrainingError(
            f"reproduce: target must be one of {', '.join(target_names())}, got {name!r}"
            f"{nearest(name, known)}"
        )
    return read_target(name, known[name])


def read_target(name: str, description: Mapping[str, Any]) -> Target:
    """Returns the target that a description says, checked.

    Raises:
        TrainingError: an unknown key, a row named twice, a claim, group, origin or budget of what
            is no row, a budget of FLOPs for a row that starts from another one, or rates or a
            first seed that cannot be tried.
    """
    refuse_unknown(name, description, _TARGET_KEYS)
    rows = _rows(name, description["rows"])
    names = [row.name for row in rows]
    repeated = sorted({row for row in names if names.count(row) > 1})
    if repeated:
        raise TrainingError(f"reproduce: {name} has two rows named {repeated[0]!r}")
    baseline = description.get("baseline")
    groups = {
        group: tuple(known_row(f"{name}: {group}", row, names) for row in members)
        for group, members in description.get("groups", {}).items()
    }
    claims = tuple(
        read_claim(name, entry, names, groups) for entry in description.get("claims", ())
    )
    if baseline is not None:
        known_row(name, baseline, [row.label for row in rows])
    originals = [row.name for row in rows if not row.origins]
    by_tokens = [row.name for row in rows if row.flops_of is None]
    of_trials = [row.name for row in rows if row.rate_of is None and "rates" in description]
    for row in rows:
        if row.rate_of is not None:
            known_row(f"{name}: rate_of", row.rate_of, of_trials)
        for way, origin in row.origins.items():
            known_row(f"{name}: {way}", origin, originals)
        if row.flops_of is not None:
            known_row(f"{name}: flops_of", row.flops_of, by_tokens)
            # While a network is annealed, its operations change from step to step.
            for key, given in (
                ("tokens_factor", row.tokens_factor != 1),
                ("start_from", row.start_from),
            ):
                if given:
                    raise TrainingError(
                        f"reproduce: {name}: {row.name} has flops_of, so it can have no {key}"
                    )
    return Target(
        name,
        description["title"],
        description["paper"],
        rows,
        tuple(description["show"]),
        claims,
        tuple(description.get("figures", ())),
        baseline,
        description.get("sweep"),
        tuple(description["scales"]) if "scales" in description else None,
        _rates(name, description.get("rates"), rows),
        _trial_seeds(name, description),
        _widen_rates(name, description),
        tuple(known_row(f"{name}: steps", step, names) for step in description.get("steps", ())),
        _first_seed(name, description),
    )


def _rates(target: str, rates: Any, rows: tuple[Row, ...]) -> tuple[float, ...]:
    if rates is None:
        return ()
    if len(rates) < 2 or rates != sorted(set(rates)) or rates[0] <= 0.0:
        raise TrainingError(
            f"reproduce: {target}: rates must be two or more, rising and above 0, got {rates}"
        )
    for row in rows:
        if RATE in row.settings:
            raise TrainingError(
                f"reproduce: {target} tries rates, so {row.name} can have no {RATE} of its own"
            )
    return tuple(float(rate) for rate in rates)


def _trial_seeds(target: str, description: Mapping[str, Any]) -> int:
    seeds = description.get("trial_seeds", 1)
    if type(seeds) is not int or seeds < 1 or ("rates" not in description and seeds != 1):
        raise TrainingError(
            f"reproduce: {target}: trial_seeds must be an integer from 1, and 1 where no rates are "
            f"tried, got {seeds!r}"
        )
    return seeds


def _widen_rates(target: str, description: Mapping[str, Any]) -> bool:
    widens = description.get("widen_rates", False)
    if type(widens) is not bool or (widens and "rates" not in description):
        raise TrainingError(
            f"reproduce: {target}: widen_rates must be true or false, and false where no rates are "
            f"tried, got {widens!r}"
        )
    return widens


def _first_seed(target: str, description: Mapping[str, Any]) -> int:
    first = description.get("first_seed", 1)
    if type(first) is not int or first < 1 or ("rates" in description and first != 1):
        raise TrainingError(
            f"reproduce: {target}: first_seed must be an integer from 1, and 1 where rates are "
            f"tried, got {first!r}"
        )
    return first


@cache
def _descriptions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted((Path(__file__).parent / "data").glob("*.yaml")):
        if file.name != "scales.yaml":
            found.update(parse_yaml(file.read_bytes(), file.name))
    return found


def _number(name: str) -> int:
    digits = re.sub(r"\D", "", name)
    return int(digits) if digits else 0


def _rows(target: str, entries: Any) -> tuple[Row, ...]:
    if isinstance(entries, Mapping):
        return tuple(_table_rows(int(entries["table"])))
    return tuple(_row(target, {"label": e} if isinstance(e, str) else e) for e in entries)


def _row(target: str, entry: Mapping[str, Any]) -> Row:
    refuse_unknown(target, entry, _ROW_KEYS)
    return Row(**{"name": entry["label"], **entry})


def _table_rows(table: int) -> list[Row]:
    """The rows of a table; names distinguish rows of one label."""
    printed = [row for row in paper_tables() if row["table"] == table]
    several_lengths = len({row["context_length"] for row in printed}) > 1
    rows = []
    for row in printed:
        suffix = f", T={row['context_length']}" if several_lengths else ""
        budgets = row.get("perplexity_by_tokens")
        for factor, perplexity in _budgets(budgets, row["perplexity"]):
            rows.append(
                Row(
                    name=row["label"] + suffix + (f", {factor}x" if budgets else ""),
                    label=row["label"],
                    model=row["model"],
                    dataset=row["dataset"],
                    context_length=row["context_length"],
                    tokens_factor=factor,
                    paper={"diverged": 1.0}
                    if perplexity is None
                    else {"perplexity": perplexity, "diverged": 0.0},
                )
            )
    return rows


def _budgets(
    by_tokens: Mapping[str, float | None] | None, perplexity: float | None
) -> list[tuple[int, float | None]]:
    if by_tokens is None:
        return [(1, perplexity)]
    sizes = {text: float(text.removesuffix("B")) for text in by_tokens}
    least = min(sizes.values())
    return [(round(size / least), by_tokens[text]) for text, size in sizes.items()]
