"""What expressions of docs/ledger.yaml may name: results, the simulator, outputs of notebooks."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aero import AeroConfig as AeroConfig
from aero import mpc
from aero.paper import compare_with_paper as compare_with_paper
from aero.paper import paper_tables as paper_tables
from benchmarks.paper.outcome import judge_again

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
VERDICTS = ("holds", "does not hold", "level", "undecided", "not tested")


def newest(stem: str, suffix: str) -> Path:
    found = sorted(RESULTS.glob(f"{stem}_[a-z]*_20[0-9][0-9][0-9][0-9]{suffix}"))
    assert found, f"benchmarks/results has no {stem}_*{suffix}"
    return found[-1]


@functools.cache
def data(stem: str, suffix: str = ".json") -> Any:
    """The newest committed results of this name, as JSON."""
    return json.loads(newest(stem, suffix).read_text("utf-8"))


def number_at(quote: str, text: str) -> float:
    """The number at the place of `{}`; spaces are any, `…` is anything."""
    pattern = r"\s+".join(re.escape(word) for word in quote.split())
    pattern = pattern.replace(r"\{\}", r"([-+]?[\d,]*\.?\d+)").replace("…", ".*?")
    found = set(re.findall(pattern, text))
    assert len(found) == 1, f"{quote!r} stands there with the numbers {found}, not with one"
    return float(found.pop().replace(",", ""))


def said(stem: str, quote: str, suffix: str = ".md") -> float:
    """A number of a sentence or table row of the newest committed page of this name."""
    return number_at(quote, newest(stem, suffix).read_text("utf-8"))


def output(notebook: int, quote: str) -> float:
    """A number of a line or a table row that a notebook's cells showed."""
    (path,) = (ROOT / "notebooks").glob(f"{notebook}_*.ipynb")
    outputs = (
        part
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        for part in cell.get("outputs", ())
    )
    shown = (part.get("text", part.get("data", {}).get("text/markdown", "")) for part in outputs)
    return number_at(quote, "\n".join("".join(text) for text in shown))


def demo(name: str) -> Any:
    """A network of the demo's results."""
    (network,) = (n for n in data("demo")["networks"] if n["name"] == name)
    return network


def relu_with_foldable_norm() -> float:
    """Its largest distance from GPT-2's kind of the same shape, in % of perplexity.

    Of two starts of the embeddings, the better one of GPT-2's kind.
    """
    pairs = [
        ("SM+FN+R", ("SM+LN+G", "SM+LN+G, embeddings of 0.02")),
        ("SM+FN+R, 1 head", ("SM+LN+G, 1 head",)),
        ("foldable norm and ReLU, twice the tokens", ("baseline, twice the tokens",)),
    ]
    studies = {
        "front_mini": ("front", "front_long"),
        "front_warmup_mini": ("front_long_warmup",),
        "version_three_mini": ("version_three",),
        "convolution_mini": ("convolution",),
        "retraining": ("retraining",),
    }
    found = [
        {
            row["name"]: row["statistics"]["perplexity"]["mean"]
            for row in target_of(stem, name)["rows"]
            if row["statistics"]["perplexity"]
        }
        for stem, names in studies.items()
        for name in names
    ]
    found.append({n["name"]: n["perplexity"]["mean"] for n in data("five_networks")["networks"]})
    return max(
        100 * abs(means[ours] / min(means[each] for each in theirs if each in means) - 1)
        for means in found
        for ours, theirs in pairs
        if ours in means and theirs[0] in means
    )


def best_after_hundred_million() -> float:
    """How far `SM+FN+R+S4` lies above `SM+LN+G+S4`, the best network there, in %.

    Fails where another is better, or the baseline's best rate is not the largest tried.
    """
    rows = {
        row["label"]: row
        for row in target_of("hundred_million_mini", "hundred_million")["rows"]
        if row["name"].endswith("105 M")
    }
    means = {label: row["statistics"]["perplexity"]["mean"] for label, row in rows.items()}
    assert min(means, key=means.__getitem__) == "SM+LN+G+S4"
    for label in ("SM+LN+G", "SM+LN+G+S4"):
        rates = rows[label]["rates"]
        assert len(rates["tried"]) == 3 and rates["best"] == max(map(float, rates["tried"]))
    return 100 * (means["SM+FN+R+S4"] / means["SM+LN+G+S4"] - 1)


def target_of(stem: str, name: str) -> Any:
    """A target of the newest committed results of this name."""
    (found,) = (each for each in data(stem)["targets"] if each["target"] == name)
    return found


def claimed(stem: str, target: str, claim: str, part: int = 0) -> list[float]:
    """Effect and interval in % of a comparison of the claim of a target that begins so."""
    (found,) = (
        each for each in target_of(stem, target)["claims"] if each["claim"].startswith(claim)
    )
    difference = found["differences"][part]
    return [100 * math.expm1(difference[e]) for e in ("effect", "low", "high")]


def front_targets() -> list[Any]:
    """The fair front at both budgets, and with a longer warm-up."""
    return [*data("front_mini")["targets"], *data("front_warmup_mini")["targets"]]


def front(name: str, budget: str = "front", stack: str | None = None) -> list[float]:
    """Perplexity and ± of a row of the fair front at one budget, or its GB on a stack."""
    (target,) = (t for t in front_targets() if t["target"] == budget)
    if stack is not None:
        (point,) = (p for p in target["private"]["points"] if p["name"] == name)
        return [point["costs"][stack]["gigabytes"]]
    (found,) = (row["statistics"]["perplexity"] for row in target["rows"] if row["name"] == name)
    return [found["mean"], found["standard_deviation"]]


def verdicts(verdict: str, stem: str = "reproduction_mini") -> int:
    """How many of the paper's claims got this verdict, or any."""
    return sum(
        verdict in ("", claim["verdict"])
        for target in data(stem)["targets"]
        for claim in target["claims"]
        if target["target"] != "penalty"
    )


def judged_alone() -> list[int]:
    """Verdicts that would differ with the spread of each target alone, of how many in all.

    Fails where one would hold in place of failing, or the other way round.
    """
    changes, count = [], 0
    for file in RESULTS.glob("*.json"):
        content = json.loads(file.read_text("utf-8"))
        for target in content.get("targets", ()) if isinstance(content, dict) else ():
            alone = copy.deepcopy(target)
            judge_again([alone])
            count += len(alone["claims"])
            pairs = zip(target["claims"], alone["claims"], strict=True)
            changes += [{a["verdict"], b["verdict"]} for a, b in pairs]
    assert {"holds", "does not hold"} not in changes
    return [sum(len(change) > 1 for change in changes), count]


def tally(stem: str = "reproduction_mini") -> list[float]:
    """How many of the paper's claims hold, do not, are level, undecided and untested."""
    return [verdicts(verdict, stem=stem) for verdict in VERDICTS]


def penalty_tests() -> list[float]:
    """Comparisons of AERO at the paper's balance with the plain network: all, lost and won."""
    claims = (
        r"The entropy penalty improves|It (also )?improves the pruned|"
        r"The penalty (adds|improves the ann|at the)"
    )
    changes = ("reproduction_mini", "reproduction_unit_mini", "reproduction_final_norm_mini")
    old_ends = ("({} to … %, simultaneous", "to {} %, simultaneous")
    ends = [tuple(said("five_networks", f"EReg(SM(t)+ScFuFFN) has … {end}") for end in old_ends)]
    row = "| EReg(SM(t)+ScFuFFN+S4) | SM+ScFuFFN+S4 | perplexity | … % |"
    # A lower perplexity is a loss of the plain network.
    ends.append((-said("demo", f"{row} … to {{}} % |"), -said("demo", f"{row} {{}} % to")))
    for stem in (*changes, "penalty_unit_mini", "start_factorial", "start_again", "retraining"):
        made = [claim for target in data(stem)["targets"] for claim in target["claims"]]
        found = [
            c for claim in made if re.match(claims, claim["claim"]) for c in claim["differences"]
        ]
        # Figure 9: the first of its comparisons is with the plain network.
        found += [
            c["differences"][0] for c in made if c["claim"] == "It also has the lowest perplexity."
        ]
        ends += [(each["low"], each["high"]) for each in found if each["low"] is not None]
    return [len(ends), sum(high < 0 for _, high in ends), sum(low > 0 for low, _ in ends)]


def misses(chosen: Callable[[dict[str, Any]], bool]) -> list[float]:
    """Shares by which bytes measured between two parties miss their prediction."""
    rows = [
        {**row, "measured": row["client_bytes"] + row["server_bytes"]}
        for row in data("private_bytes")["rows"]
    ]
    return [abs(float(row["ratio"]) - 1) for row in rows if chosen(row)]


def largest_miss(chosen: Callable[[dict[str, Any]], bool]) -> float:
    """The largest of `misses`."""
    return max(misses(chosen))


def mean_miss() -> float:
    """The mean of `misses` of operations of 10 MB and more, and of the layers of networks."""
    return statistics.fmean(
        misses(
            lambda row: (
                row["name"] == "all layers"
                or (not row["network"] and row["name"] != "set-up" and row["measured"] >= 10e6)
            )
        )
    )


def seconds_missed() -> int:
    """Whole per cent within which all predicted seconds lie of the measured ones."""
    return math.ceil(
        max(
            100 * abs(cell["predicted_seconds"] / cell["seconds"] - 1)
            for cell in data("private_seconds")["cells"]
        )
    )


def gigabytes(label: str, stack: str = "spu-2024", **settings: Any) -> float:
    """The simulator's count for one pass; GPT-2's size where no other is said."""
    return mpc.simulate(label, stack=stack, **settings).comm_bytes / 1e9


def element_bytes(name: str) -> float:
    """Bytes of one element of an operation on `spu-2024`, among as many as a layer of GPT-2 has."""
    return mpc.operation_cost(name, 128 * 3072).comm_bytes / (128 * 3072)


def share(label: str, kind: str) -> float:
    """How much of the bytes of that pass one kind of operation takes, in %."""
    cost = mpc.simulate(label, stack="spu-2024")
    return 100 * cost.by_kind[kind].comm_bytes / cost.comm_bytes


def factor(stack: str, **settings: Any) -> float:
    """How many times fewer bytes AERO takes than the baseline, both as the paper lists them."""
    baseline = gigabytes("SM+LN+G", stack, final_norm="none", **settings)
    return baseline / gigabytes("EReg(SM(t)+ScFuFFN)", stack, **settings)
