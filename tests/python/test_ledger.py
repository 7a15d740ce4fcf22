"""Every number of a page has a source, or a name that says it is no result: docs/ledger.yaml."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import ledger_sources
from .ledger_sources import RESULTS, ROOT

LEDGER: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "ledger.yaml").read_text("utf-8"))
PAGES = [name for name in LEDGER if name != "everywhere"]
NUMBER = re.compile(r"(?<![\w.,])[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?(?![\d]|\.\d)")
#: Code, addresses, formulas and generated text with a test of its own say no results.
CODE = re.compile(
    r"```.*?```|(?<!`)`[^`\n]+`|\]\([^)]*\)|\$\$.*?\$\$|\$[^$\n]+\$|<!--.*?-->|https?://\S+",
    re.DOTALL,
)


def text_of(page: str) -> str:
    """A page, or the prose of a notebook."""
    text = (ROOT / page).read_text("utf-8")
    if page.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return text


def blanked(text: str, *patterns: str | re.Pattern[str]) -> str:
    """A text with all that matches blank, at the same length."""
    for pattern in patterns:
        text = re.sub(pattern, lambda match: "\0" * len(match[0]), text)
    return text


def numbers(text: str) -> list[str]:
    """The numbers of a text outside code and formulas, as they are printed."""
    return NUMBER.findall(blanked(text, CODE))


def agrees(printed: str, value: float) -> bool:
    """Whether a value rounds to the digits that are printed; without a sign, words say it."""
    shown, found = Decimal(printed.replace(",", "")), Decimal(value)
    last_digit = Decimal(1).scaleb(int(shown.as_tuple().exponent))
    found = found if printed[0] in "-+" else abs(found)
    return abs(shown - found) <= last_digit * Decimal("0.5000001")


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_accounted_for(page: str) -> None:
    names = [*LEDGER["everywhere"], *LEDGER[page].get("names", ())]
    claims = [re.escape(claim) for claim in LEDGER[page].get("claims", {})]
    text = blanked(text_of(page), *claims, CODE, *names)
    left = [text[max(0, m.start() - 60) : m.end() + 40] for m in NUMBER.finditer(text)]
    shown = "\n".join(re.sub(r"[\0\n]+", " … ", context) for context in left)
    assert not left, f"{page} says numbers that docs/ledger.yaml does not name:\n{shown}"


CLAIMS = [(page, claim) for page in PAGES for claim in LEDGER[page].get("claims", {})]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_a_claim_is_what_its_source_says(page: str, claim: str) -> None:
    assert text_of(page).count(claim) == 1, f"{page} should say this once: {claim!r}"
    printed = numbers(claim)
    sources = LEDGER[page]["claims"][claim]
    values: list[float | None] = []
    for source in sources if isinstance(sources, list) else [sources]:
        value = None if source is None else eval(source, dict(vars(ledger_sources)))
        values += value if isinstance(value, list) else [value]
    assert len(values) == len(printed), f"{claim!r} says {printed}, its sources are {values}"
    for digits, value in zip(printed, values, strict=True):
        if value is not None:
            assert agrees(digits, value), f"{page}: {claim!r} says {digits}, its source {value}"


@pytest.mark.parametrize("page", PAGES)
def test_every_name_stands_on_its_page(page: str) -> None:
    text = blanked(text_of(page), CODE)
    for name in LEDGER[page].get("names", ()):
        assert re.search(name, text), f"{page} has no {name!r}: take it off docs/ledger.yaml"


#: Page -> how many numbers its prose may have; tables, code and formulas do not count.
FEW = {
    "README.md": 20,
    "docs/paper.md": 40,
    "docs/explanation/entropy_penalty.md": 40,
    "docs/explanation/negative_results.md": 40,
    **dict.fromkeys(
        [
            "docs/which_part.md",
            "docs/limits.md",
            "docs/how_to/entropy_in_jupyter.md",
            "docs/how_to/watch_a_run.md",
            "docs/how_to/troubleshooting.md",
        ],
        10,
    ),
}


@pytest.mark.parametrize(("page", "most"), FEW.items())
def test_prose_has_few_numbers(page: str, most: int) -> None:
    prose = "\n".join(line for line in text_of(page).splitlines() if not line.startswith("|"))
    found = NUMBER.findall(blanked(prose, CODE, *LEDGER["everywhere"]))
    assert len(found) <= most, found


COUNT = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty"
COUNTED = re.compile(
    rf"\b(?:{COUNT}) of (?:the |all )?(?:{COUNT})\b|\b(?:{COUNT})\b(?: of (?:the )?\w+)?"
    r"(?: [\w']+){0,2} (?:claims?|comparisons?|intervals?|labels|pairs|undecided|hold|held|fail)\b"
    # Durations and factors; those of a setting ("ten times the weight") are no results.
    rf"|\b(?:half an?|{COUNT}|\w+teen) (?:seconds?|minutes?|hours?|others|points|per cent|tables"
    r"|figures|times (?!the (?:tokens|weight|learning)))\b|\bhalf as much\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PAGES)
def test_results_are_digits_which_the_list_holds(page: str) -> None:
    text = blanked(text_of(page), CODE, *LEDGER[page].get("names", ()))
    assert not COUNTED.findall(text)


def test_every_page_is_in_the_ledger() -> None:
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    assert {path.relative_to(ROOT).as_posix() for path in found} == {*PAGES}


# Rounding on an emulated GPU, and bytes.
OF_NO_PROCESSOR = {
    "cuda_speed",
    "cuda_float32_sums_emulated",
    "cuda_sharp_rows_emulated",
    "private_protocols",
}


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_every_result_names_its_processor(page: Path) -> None:
    # A name alone is that of several generations: aero.internals.processor.
    names_it = re.search(r"family \d+,? model \d+", page.read_text("utf-8"))
    assert names_it or any(page.stem.startswith(name) for name in OF_NO_PROCESSOR)


def test_a_wrong_number_is_seen() -> None:
    assert agrees("34.07", 34.066) and agrees("2,048", 2048) and agrees("5.1", -5.13)
    assert agrees("-5.1", -5.13) and agrees("+5.1", 5.13)
    assert not agrees("-5.1", 5.13) and not agrees("+5.1", -5.13)
    assert agrees("2.6e-5", 2.63e-5) and not agrees("2.6e-5", 2.66e-5)
    assert not agrees("34.07", 34.08) and not agrees("4", 4.6)
    assert numbers("1,500 of 2.5 (1e-3), 3.07M, x2, `5`") == ["1,500", "2.5", "1e-3", "3.07"]
    assert numbers("(-3.5 to +4.7), 2-4") == ["-3.5", "+4.7", "2", "4"]
