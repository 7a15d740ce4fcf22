"""The README and the pages that it leads to agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aero import mpc, paper

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_the_tables_are_the_simulators() -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
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
        assert f"{line}\n" in page


def test_the_factors_by_stack_are_the_simulators() -> None:
    said = re.search(
        r"takes ([\d.]+) times fewer bytes than `SM\+LN\+G` on `spu-2024`, ([\d.]+) times on "
        r"`spu-0\.9\.5`, ([\d.]+) times on `openbumblebee`",
        README,
    )
    assert said is not None
    for number, stack in zip(said.groups(), mpc.stack_names(), strict=True):
        # The networks as the paper lists them, without a final LayerNorm.
        baseline = mpc.simulate("SM+LN+G", stack=stack, final_norm="none")
        ours = mpc.simulate("EReg(SM(t)+ScFuFFN)", stack=stack)
        assert f"{baseline.comm_bytes / ours.comm_bytes:.1f}" == number


def test_the_readme_is_short_and_names_the_best_network_first() -> None:
    assert len(README.splitlines()) <= 90
    perplexities = re.findall(r"^\| `[^|]+\| ([\d.]+) ±", README, re.MULTILINE)
    assert len(perplexities) > 1
    assert perplexities == sorted(perplexities, key=float)


def test_every_link_and_make_target_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
