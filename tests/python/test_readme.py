"""The README and the pages that it leads to agree with the code."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aero import mpc, paper
from aero.cli.private import chosen_settings
from aero.tables import markdown_table
from aero.train.recipes.recipe_files import data_settings, load_recipe
from aero.train.runs.planning import plan_runs, require_effect

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Code that a reader sees with its output below it.
SHOWN = re.findall(r"```(\w+)\n([^`]*)```\n+```text\n([^`]*)```", README)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(example, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, example in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_and_print_what_their_comments_say(
    example: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    comments = re.findall(r"#\s+([\d.]+)(?: GB.*)?$", example, re.MULTILINE)
    promised = [float(number) for number in comments]
    assert promised == [round(float(line), 1) for line in printed[: len(promised)]]


def test_the_tables_are_the_simulators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    import counted

    rows = paper.compare_with_paper((4, 5))
    for label in {row.label for row in rows}:
        line = f"| `{label}` |"
        for table in (4, 5):
            (row,) = [r for r in rows if (r.label, r.table) == (label, table)] or [None]
            line += (
                "  |  |  |"
                if row is None
                else f" {row.paper_gb:.2f} | {row.listed_gb:.2f} ({row.listed_ratio:.4f}) | "
                f"{row.one_more_layernorm_gb:.2f} ({row.one_more_layernorm_ratio:.4f}) |"
            )
        assert line in counted.paper_bytes().splitlines()


@functools.cache
def saving_table() -> str:
    """What a pass of three networks of GPT-2's size costs, from the simulator."""
    labels = ("SM+LN+G", "SM+FN+R", "SM+ScFuFFN")

    def gigabytes(context_length: int, stack: str) -> list[float]:
        return [
            mpc.simulate(label, context_length=context_length, stack=stack).comm_bytes / 1e9
            for label in labels
        ]

    private = chosen_settings(None)  # of `aero private chat`

    def later_megabytes(label: str) -> float:
        later = mpc.simulate_generation(
            label, new_tokens=32, stack=private.stack, **private.stack_fields()
        ).per_token[1:]
        return sum(cost.comm_bytes for cost in later) / len(later) / 1e6

    counted = {
        "GB, 128 tokens, `spu-2024`": gigabytes(128, "spu-2024"),
        "GB, 512 tokens, `spu-2024`": gigabytes(512, "spu-2024"),
        "GB, 1,024 tokens, `spu-2024`": gigabytes(1024, "spu-2024"),
        "GB, 1,024 tokens, `openbumblebee`": gigabytes(1024, "openbumblebee"),
        "seconds, 128 tokens, `spu-2024`, 1 Gbit/s": [
            mpc.simulate(label).latency("lan-1gbps").seconds for label in labels
        ],
        "MB for each later token, `aero private chat`": [
            later_megabytes(label) for label in labels
        ],
    }
    rows = [
        [name, *(three_digits(value) for value in found)]
        + [f"{three_digits(found[0] / found[i])} times" for i in (1, 2)]
        for name, found in counted.items()
    ]
    header = [
        "one private pass", "GPT-2 `SM+LN+G`", "ReLU `SM+FN+R`", "softmax only `SM+ScFuFFN`",
        "ReLU saves", "softmax only saves",
    ]  # fmt: skip
    return markdown_table(header, rows, right=range(1, 6))


def three_digits(value: float) -> str:
    """A number to three digits, as 25.3, 73.0 and 425."""
    return f"{value:#.3g}".rstrip(".")


def test_the_saving_by_context_and_protocol_is_the_simulators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    import counted

    table = saving_table()
    assert table in README, f"\n{table}"
    assert counted.saving() == table  # docs/how_to/price.md


def test_the_readme_has_the_tables_that_its_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    import counted

    assert counted.renewed(README) == README, "run: python docs/tools/counted.py"
    changed = README.replace("| 25.3 |", "| 25.4 |")
    assert changed != README and counted.renewed(changed) == README


def test_three_ways_in_show_their_output() -> None:
    assert len(SHOWN) == 3
    for _, code, _ in SHOWN:
        assert sum(bool(line.strip()) for line in code.splitlines()) <= 6


@pytest.mark.parametrize(("language", "code", "output"), SHOWN)
def test_what_the_readme_shows_below_its_code_is_its_output(
    language: str, code: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if language == "python":
        exec(compile(code, "README.md", "exec"), {})
        found = capsys.readouterr().out
    else:
        typed, _, lines = code.replace("\\\n", " ").partition(" | head -")
        words = [word for word in shlex.split(typed) if word != "aero"]
        command = [sys.executable, "-m", "aero.cli", *words]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = "".join(found.splitlines(keepends=True)[: int(lines) if lines else None])
    assert found == output


def test_the_readme_is_short_and_names_the_best_network_first() -> None:
    assert len(README.splitlines()) <= 90
    perplexities = re.findall(r"^\| `[^|]+\| \d+ \| ([\d.]+) ±", README, re.MULTILINE)
    assert len(perplexities) > 1
    assert perplexities == sorted(perplexities, key=float)


def test_every_link_and_make_target_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_what_make_demo_trains_are_networks_and_settings_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo", "SEEDS=3"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.replace("\\\n", " ")  # fmt: skip
    trained = [shlex.split(line) for line in printed.splitlines() if "aero train " in line]
    monkeypatch.chdir(tmp_path)
    planned = []
    for words in trained:
        given = list(itertools.pairwise(words))
        values = {
            option: [value for name, value in given if name == option]
            for option in ("--label", "--seed", "--set")
        }
        recipe = load_recipe("demo", settings=[*values["--set"], *data_settings("stdlib")])
        plan = plan_runs(
            recipe, values["--label"], [*map(int, values["--seed"])], output=Path("runs")
        )
        require_effect(plan, values["--set"])
        planned += plan
    shown = re.findall(r"(?m)^\| `([^`]+)`(?:, [^|]+)? \| \d+ \| [\d.]+ ±", README)
    assert sorted(shown * 3) == sorted(run.spec.label for run in planned)
