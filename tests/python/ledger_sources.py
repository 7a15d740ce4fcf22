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
from aero.architecture import ArchitectureSpec
from aero.mpc.simulation import described_spec
from aero.paper import compare_with_paper as compare_with_paper
from aero.paper import paper_tables as paper_tables
from aero.private.prediction import predicted_operations, remainder, total_cost
from aero.private.settings import PrivateSettings
from benchmarks.paper.cost_rows import private_costs
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


def network(name: str) -> list[float]:
    """Perplexity, ±, parameters in M or k, and GB of a network of the demo."""
    found, private = demo(name), demo(name)["private_inference"]
    parameters, perplexity = found["parameters"], found["perplexity"]
    return [
        perplexity["mean"],
        perplexity["standard_deviation"],
        parameters / (1e6 if parameters >= 1e6 else 1e3),
        private["trained"]["spu-2024"]["comm_bytes"] / 1e9,
    ]


def start(label: str, rule: str) -> list[float]:
    """First layer's stream, scores, gradient and entropy, and the loss, of a start of training."""
    page = newest("start_of_training", ".md").read_text("utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{label}` | {rule} |"))
    cells = [float(cell.split("/")[0]) for cell in row.split("|")[3:-1]]
    return [*cells[:3], cells[6], cells[-1]]


def stream(label: str, rule: str, step: int, layer: int) -> float:
    """A layer's stream after so many steps of a start of training."""
    runs = data("start_of_training")["runs"]
    (found,) = (run for run in runs if (run["label"], run["rule"]) == (label, rule))
    return float(found["steps"][str(step)]["stream"][layer])


def start_labels() -> list[float]:
    """How many labels end a hundred steps with a lower loss at variance 1, and of how many."""
    scaled = {"none": "embeddings x 50, variance 1", "t from 0.01": "t from 0.01, embeddings x 50"}
    losses = {(run["label"], run["rule"]): run["loss"] for run in data("start_of_training")["runs"]}
    pairs = [
        (loss, losses[label, scaled[rule]])
        for (label, rule), loss in losses.items()
        if (label, scaled.get(rule)) in losses
    ]
    return [sum(after < before for before, after in pairs), len(pairs)]


def factorial(name: str, *, each: bool = False, stem: str = "start_factorial") -> list[float]:
    """Perplexity and ±, or each seed's but NaN, and the rate of a row of the starts."""
    (target,) = data(stem)["targets"]
    (row,) = (row for row in target["rows"] if row["name"] == name)
    found = row["statistics"]["perplexity"]
    numbers = found["values"] if each else [found["mean"], found["standard_deviation"]]
    return [*numbers, row["rates"]["best"]] if row["rates"] else numbers


def retrained(name: str) -> list[float]:
    """Perplexity and ± of a row of the networks from a trained baseline."""
    return factorial(name, stem="retraining")[:2]


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


def less(
    claim: str, part: int = 0, *, stem: str = "front_mini", target: str = "front_long"
) -> list[float]:
    """How much lower the higher side of a claim that fails is, in %: of the longer front's."""
    effect, low, high = claimed(stem, target, claim, part)
    return [-effect, -high, -low]


def why(target: str, row: str, statistic: str = "perplexity") -> float:
    """Mean of a row of the targets that ask why claims fail; shares in %."""
    rows = target_of("why_claims_fail_mini", target)["rows"]
    (mean,) = (r["statistics"][statistic]["mean"] for r in rows if r["name"] == row)
    return float(mean) if statistic == "perplexity" else 100 * float(mean)


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


def smallest(layers: int, width: int, hidden: int) -> float:
    """GB of a small `SM+R` with one head at the front's vocabulary and context."""
    sizes = {"num_layers": layers, "num_heads": 1, "head_dim": min(width, 32), "width": width}
    spec = ArchitectureSpec.from_label(
        "SM+R", model="gpt2", **sizes, hidden_width=hidden, vocab_size=1024, context_length=128
    )
    return private_costs(spec)["spu-2024"].gigabytes


def above_their_best() -> list[float]:
    """Of the long front's networks without norms, at 4e-3: how many have over half more perplexity
    than at 2e-3, of how many, and least and most more in %; at 8e-3: how many diverge, of how many.
    """
    target = target_of("front_mini", "front_long")
    tried = [
        row["rates"]["tried"]
        for row in target["rows"]
        if not re.search(r"\+LN|\+FN|taught", row["name"])
    ]
    more = [100 * (rates["0.004"] / rates["0.002"] - 1) for rates in tried]
    worse = [each for each in more if each > 50]
    diverged = sum(rates["0.008"] is None for rates in tried)
    return [len(worse), len(tried), min(worse), max(worse), diverged, len(tried)]


def factor_pairs() -> list[float]:
    """Of the starts crossed with FFNs: pairs whose mean the factor lowers, and all; of the others,
    runs without it that diverge, and the perplexity of the one that failed.
    """
    rows = {row["name"]: row for row in data("start_factorial")["targets"][0]["rows"]}
    starts = ("none", "scaled"), *((norm, f"{norm}, scaled") for norm in ("final norm", "FN", "LN"))
    lowered, diverged, failed = [], 0, []
    for ffn in ("ScFuFFN", "R", "G"):
        for names in starts:
            without, with_it = (rows[f"{ffn}, {name}"] for name in names)
            values, after = (row["statistics"]["perplexity"] for row in (without, with_it))
            broken = sum(cell["status"] == "diverged" for cell in without["cells"])
            far = [value for value in values["values"] if value > 2 * values["minimum"]]
            lowered.append(not broken and not far and after["mean"] < values["mean"])
            diverged, failed = diverged + broken, failed + far
    return [sum(lowered), len(lowered), diverged, *failed]


def widened() -> list[float]:
    """Of the claims on starts crossed with FFNs: those with an interval of over a factor of 2."""
    differences = [c["differences"][0] for c in data("start_factorial")["targets"][0]["claims"]]
    return [sum(d["high"] - d["low"] > math.log(2) for d in differences), len(differences)]


def over_files(stem: str, name: str) -> list[float]:
    """How many files the validation text has, how much wider an interval over them is at most than
    that over seeds, and how many comparisons of the target have both.

    Fails unless 0 lies outside it wherever it lies outside that over seeds, and
    where a comparison has only the one over seeds.
    """
    target = target_of(stem, name)
    made = [d for c in target["claims"] for d in c["differences"]]
    ratios, differing = [], 0
    # Costs have no seeds, and runs that reached NaN no effect.
    for found in (each for each in made if each["seeds"] and each["effect"] is not None):
        low, high = found["low_over_documents"], found["high_over_documents"]
        decided = found["low"] * found["high"] > 0
        differing += decided and not low * found["low"] > 0 < high * found["high"]
        ratios.append((high - low) / (found["high"] - found["low"]))
    assert not differing
    rows = [row for row in target["rows"] if row.get("documents")]
    return [len(rows[0]["documents"]["tokens"]), max(ratios), len(ratios)]


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
    demo_ends = ("({} to … %, simultaneous", "to {} %, simultaneous")
    ends = [tuple(said("demo", f"EReg(SM(t)+ScFuFFN) has … {end}") for end in demo_ends)]
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


def turned(before: str, after: str, change: str = "unit") -> int:
    """How many of the paper's claims with one verdict got another, or any, after a change."""

    def claims(stem: str) -> dict[tuple[str, str], str]:
        targets = data(stem)["targets"]
        return {(t["target"], c["claim"]): c["verdict"] for t in targets for c in t["claims"]}

    first, then = claims("reproduction_mini"), claims(f"reproduction_{change}_mini")
    return sum(after in ("", then[claim]) for claim in then if first[claim] == before)


def beside_fn(name: str, stem: str = "norms") -> list[float]:
    """Perplexity and ± of a norm, and how far it lies above FN's with its interval, in %.

    With `layer_norm_removal` those of a way, and how far it lies above removal.
    """
    (row,) = (row for row in data(stem)["rows"] if row["norm"] == name)
    perplexities = [math.exp(loss) for loss in row["losses"]]
    gap = [100 * math.expm1(row[end]) for end in ("effect", "low", "high")]
    return [statistics.mean(perplexities), statistics.stdev(perplexities), *gap]


def finding(name: str) -> Any:
    """The values of a finding of the demo."""
    (found,) = (f["values"] for f in data("demo")["findings"] if f["name"] == name)
    return found


def measured(label: str) -> dict[str, float]:
    """MB between two processes for a network of the demo and 32 tokens, and as predicted."""
    (cell,) = (
        cell
        for cell in data("private_effect")["cells"]
        if (cell["cell"]["label"], cell["cell"]["num_layers"]) == (label, 6)
        and (cell["cell"]["length"], cell["cell"]["link"]) == (32, "tcp")
    )
    sent = cell["client_bytes"] + cell["server_bytes"]
    predicted = cell["predicted_client_bytes"] + cell["predicted_server_bytes"]
    return {"bytes": sent / 1e6, "predicted": predicted / 1e6}


def largest_miss(chosen: Callable[[dict[str, Any]], bool]) -> float:
    """Largest share by which bytes measured between two parties miss their prediction."""
    rows = [
        {**row, "measured": row["client_bytes"] + row["server_bytes"]}
        for row in data("private_bytes")["rows"]
    ]
    return max(abs(float(row["ratio"]) - 1) for row in rows if chosen(row))


def single_passes() -> tuple[float, float]:
    """Largest shares by which one pass of a network missed its bytes: all, and after refills."""
    missed = []
    for found in data("private_effect")["cells"]:
        cell, sent = found["cell"], found["client_bytes"] + found["server_bytes"]
        settings = PrivateSettings.from_dict({"threads": cell["threads"], **cell["changes"]})
        spec = ArchitectureSpec.from_dict(found["spec"])
        described = described_spec(spec)
        cost = total_cost(o.cost for o in predicted_operations(described, cell["length"], settings))
        left = remainder(cost, 1, sent, one_bit_product_error=settings.one_bit_product_error)
        missed.append((abs(sent - cost.comm_bytes), abs(left), cost.comm_bytes))
    whole, left = (max(each[part] / each[2] for each in missed) for part in (0, 1))
    return whole, left


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


def norms(label: str) -> tuple[float, float]:
    """Gigabytes and rounds of the norms in that pass."""
    cost = mpc.simulate(label, stack="spu-2024").by_kind.get("layernorm")
    return (0, 0) if cost is None else (cost.comm_bytes / 1e9, cost.rounds)


def factor(stack: str, **settings: Any) -> float:
    """How many times fewer bytes AERO takes than the baseline, both as the paper lists them."""
    baseline = gigabytes("SM+LN+G", stack, final_norm="none", **settings)
    return baseline / gigabytes("EReg(SM(t)+ScFuFFN)", stack, **settings)
