"""Tables of numbers of README and manual, from the simulator and from committed results.

`python docs/tools/counted.py` writes those of the README anew. The manual fills in its own.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from committed import content, newest

from aero import mpc, paper
from aero.mpc.generation import private_fields
from aero.private.settings import BETWEEN_PROCESSES, STACKS
from aero.tables import markdown_table

README = Path(__file__).parents[2] / "README.md"
#: Label -> its name in tables of savings.
NETWORKS = {
    "SM+LN+G": "GPT-2 `SM+LN+G`",
    "SM+FN+R": "ReLU `SM+FN+R`",
    "SM+ScFuFFN": "softmax only `SM+ScFuFFN`",
}
#: Label -> what the network is, in the table of trained ones.
TRAINED = {
    "SM+LN+G": "as in GPT-2",
    "SM+LN+G+S4": "LayerNorm and GELU",
    "SM+FN+R+S4": "foldable norm and ReLU",
    "SM+ScFuFFN+S4": "softmax only",
    "EReg(SM(t)+ScFuFFN+S4)": "AERO",
}


@functools.cache
def gigabytes(label: str, stack: str = "spu-2024", context_length: int = 128) -> float:
    """Gigabytes of one private pass at GPT-2's size, both parties."""
    report = mpc.simulate(label, stack=stack, context_length=context_length)
    return report.comm_bytes / 1e9


@functools.cache
def saving() -> str:
    """What a pass of three networks of GPT-2's size costs."""

    def later_megabytes(label: str) -> float:
        later = mpc.simulate_generation(label, new_tokens=32).per_token[1:]
        return sum(cost.comm_bytes for cost in later) / len(later) / 1e6

    counted = {
        f"GB, {tokens:,} tokens, `{stack}`": [gigabytes(n, stack, tokens) for n in NETWORKS]
        for tokens, stack in (
            (128, "spu-2024"), (512, "spu-2024"), (1024, "spu-2024"), (1024, "openbumblebee"),
        )
    }  # fmt: skip
    counted["seconds, 128 tokens, `spu-2024`, 1 Gbit/s"] = [
        mpc.simulate(label).latency("lan-1gbps").seconds for label in NETWORKS
    ]
    counted["MB for each later token, `aero private chat`"] = [*map(later_megabytes, NETWORKS)]
    rows = [
        [name, *map(three_digits, found)]
        + [f"{three_digits(found[0] / found[i])} times" for i in (1, 2)]
        for name, found in counted.items()
    ]
    header = ["one private pass", *NETWORKS.values(), "ReLU saves", "softmax only saves"]
    return markdown_table(header, rows, right=range(1, 6))


def private_protocols() -> str:
    """The places where each protocol may run, whom one trusts there, and what is sent."""
    rows = []
    for name, stack in STACKS.items():
        fields = private_fields(stack)
        report = mpc.simulate("SM+ScFuFFN", stack=stack, context_length=128, **fields)
        dealt = report.total.dealer_bytes / 1e9
        trust = report.trust + (f"; who sends {three_digits(dealt)} GB before" if dealt else "")
        between, alone = "yes", "yes"
        if name not in BETWEEN_PROCESSES:
            between, alone = "refused", "yes, to measure: its dealer is one of the parties"
        pass_bytes = three_digits(report.comm_bytes / 1e9)
        rows.append([f"`{name}`", trust, pass_bytes, alone, between, between])
    header = [
        "protocol", "whom you trust", "GB of a pass", "`run`, `chat`", "`run --link tcp`",
        "`serve`, `ask`, `chat --connect`",
    ]  # fmt: skip
    return markdown_table(header, rows, right=range(2, 3))


def three_digits(value: float) -> str:
    """A number to three digits, as 25.3, 73.0 and 425."""
    return f"{value:#.3g}".rstrip(".")


def five_networks() -> str:
    """The networks of the demo, the best first."""
    rows = []
    for row in sorted(content("demo")["networks"], key=lambda row: row["perplexity"]["mean"]):
        size, perplexity = row["parameters"], row["perplexity"]
        rows.append(
            [
                f"`{row['name']}`, {TRAINED[row['name']]}",
                str(row["spec"]["num_heads"]),
                f"{perplexity['mean']:.2f} ± {perplexity['standard_deviation']:.2f}",
                f"{size / 1e6:.2f}M" if size >= 1e6 else f"{size / 1e3:.0f}k",
                f"{row['private_inference']['trained']['spu-2024']['comm_bytes'] / 1e9:.2f}",
            ]
        )
    header = ["network", "heads", "perplexity", "parameters", "GB"]
    return markdown_table(header, rows, right=range(1, 5))


def paper_bytes() -> str:
    """Our GB next to Tables 4 and 5 of the paper."""
    cells = {(row.label, row.table): row for row in paper.compare_with_paper((4, 5))}
    rows = []
    for label in dict.fromkeys(label for label, _ in cells):
        line = [f"`{label}`"]
        for table in (4, 5):
            row = cells.get((label, table))
            line += (
                ["", "", ""]
                if row is None
                else [
                    f"{row.paper_gb:.2f}",
                    f"{row.listed_gb:.2f} ({row.listed_ratio:.4f})",
                    f"{row.one_more_layernorm_gb:.2f} ({row.one_more_layernorm_ratio:.4f})",
                ]
            )
        rows.append(line)
    columns = ("paper", "ours as listed", "ours, one LayerNorm more")
    header = ["network", *(f"T={tokens}: {name}" for tokens in (128, 256) for name in columns)]
    return markdown_table(header, rows)


def prices_of_norms() -> str:
    """What every norm costs in a private pass at GPT-2's size."""
    rows = []
    for norm in ("FN", "LN", "DyT", "Derf"):
        label = f"SM+{norm}+G"
        cost = mpc.simulate(label).by_kind.get("layernorm")
        parts = ["0", "0"] if cost is None else [f"{cost.comm_bytes / 1e9:.2f}", f"{cost.rounds:,}"]
        rows.append([f"`{label}`", f"{gigabytes(label):.2f}", *parts])
    header = ["network", "all, GB", "norms, GB", "rounds of the norms"]
    return markdown_table(header, rows, right=range(1, 4))


def side_by_side(stem: str, reference: str) -> str:
    """Networks that differ in one part, the best first, and how far each lies above one of them."""
    rows = []
    for row in content(stem)["rows"]:
        perplexities = [math.exp(loss) for loss in row["losses"]]
        mean = statistics.mean(perplexities)
        gap, low, high = (100 * math.expm1(row[end]) for end in ("effect", "low", "high"))
        effect = "" if row["norm"] == reference else f"{gap:+.1f} % ({low:+.1f} to {high:+.1f})"
        shown = f"{mean:.2f} ± {statistics.stdev(perplexities):.2f}"
        rows.append((mean, [row["norm"], shown, effect, row["verdict"]]))
    header = ["network", "perplexity", f"above {reference} (95 % interval)", "verdict"]
    return markdown_table(header, [cells for _, cells in sorted(rows)], right=(1, 2))


def speed() -> str:
    """How many times as fast as torch's attention without entropy, from the least to the most."""
    rows = []
    for name, stem in (("Zen 4", "attention_entropy_zen4"), ("Zen 5", "attention_entropy_zen5")):
        page = newest(stem, ".md")
        ratios = re.findall(
            r"^\| (\w+) \| forward[^|]*\| \d+ \| ([\d.]+) \(", page.read_text("utf-8"), re.MULTILINE
        )
        cells = [
            f"{min(found):.1f} to {max(found):.1f} times"
            for kind in ("float32", "bfloat16")
            for found in [[float(ratio) for each, ratio in ratios if each == kind]]
        ]
        rows.append([f"[EPYC, {name}](../benchmarks/results/{page.name})", *cells])
    return markdown_table(["processor", "float32", "bfloat16"], rows)


#: How the first line of a table of the README begins -> the table.
OF_README: Mapping[str, Callable[[], str]] = {
    "| one private pass |": saving,
    "| network | heads |": five_networks,
}


def renewed(text: str) -> str:
    """The text of the README with its tables written anew."""
    for first, table in OF_README.items():
        found = re.escape(first) + r".*\n(?:\|.*\n)*"
        text, count = re.subn(found, lambda _, table=table: f"{table().rstrip()}\n", text)
        assert count == 1, first
    return text


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
