"""Networks of a report that differ in one thing, judged over seeds by `aero.report.seeds`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from aero.report.seeds import Difference, Pool, Series, family_of

Entry = Mapping[str, Any]


def twins_of(networks: Sequence[Entry]) -> dict[str, list[tuple[Entry, Entry]]]:
    """Returns what is said to be better next to what it is compared with, by kind of finding.

    Args:
        networks: the `networks` of report.json.
    """
    found: dict[str, list[tuple[Entry, Entry]]] = {"ereg": [], "folded": [], "way": []}
    for entry in networks:
        spec = entry["spec"]
        others = {
            "ereg": _twin(networks, entry, entropy_regularized=False, temperature="none")
            if spec["entropy_regularized"]
            else None,
            "folded": _twin(networks, entry, norm="none", final_norm="none")
            if spec["norm"].startswith("foldable")
            else None,
            "way": _twin(networks, {**entry, "way": ""}) if _way(entry) else None,
        }
        for kind, other in others.items():
            if other is not None:
                found[kind].append((entry, other))
    return found


class Judged:
    """All comparisons of a report, which share the 5 % of its test.

    Args:
        twins: as of `twins_of`.
    """

    def __init__(self, twins: Mapping[str, Sequence[tuple[Entry, Entry]]]) -> None:
        pairs = [pair for several in twins.values() for pair in several]
        count = len(pairs) + len(twins["ereg"])
        entries = [entry for pair in pairs for entry in pair]
        self._perplexity = Pool(map(_logarithms, entries), comparisons=count)
        self._overload = Pool(map(_overload, entries), comparisons=count)

    def perplexity(self, better: Entry, worse: Entry) -> Difference:
        """Whether one has the lower perplexity, in logarithms; within 2 % they are level."""
        pair = _logarithms(better), _logarithms(worse)
        return self._perplexity.judge(*pair, margin=math.log(1.02))

    def overload(self, less: Entry, more: Entry) -> Difference:
        """Whether fewer heads lie in the last quarter of log T; within 5 points it is level."""
        return self._overload.judge(_overload(less), _overload(more), margin=0.05)


def _logarithms(entry: Entry) -> Series:
    """Of the perplexity of every run that ended; infinite where it diverged."""
    values = {}
    for run in entry["runs"]:
        if run["status"] == "diverged":
            values[run["seed"]] = math.inf
        elif run["status"] == "finished" and run["perplexity"] is not None:
            values[run["seed"]] = math.log(run["perplexity"])
    return _series(entry, values)


def _overload(entry: Entry) -> Series:
    # Against the largest entropy each network reaches, as the paper has it, a network whose heads
    # all sit low would count as overloaded too; log T is the same for both.
    shares = (entry["entropy"] or {}).get("overloaded_share") or {}
    return _series(entry, {int(seed): share for seed, share in shares.items()})


def _series(entry: Entry, values: dict[int, float]) -> Series:
    spec = entry["spec"]
    return Series(entry["name"], values, family_of(spec["norm"], spec["shaped_attention"]))


def _twin(networks: Sequence[Entry], entry: Entry, **changes: Any) -> Entry | None:
    """The network that differs from `entry` in nothing but these fields of its spec."""
    wanted = {**entry["spec"], **changes}
    same_way = (other for other in networks if _way(other) == _way(entry))
    return next((other for other in same_way if other["spec"] == wanted), None)


def _way(entry: Entry) -> str:
    way: str = entry.get("way", "")
    return way
