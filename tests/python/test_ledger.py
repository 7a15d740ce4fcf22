"""Prose has few numbers, and docs/ledger.yaml binds those of results; tables are generated."""

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
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("notebooks/*.ipynb")),
    )
]
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


#: Numbers that name something: tables, papers, versions, sizes.
NAMES = (
    r"(?:Tables?|Figures?|figure|[Nn]otebook|Eq\.|Section|Algorithm) \d+"
    r"(?:(?:, | and |\u2013)\d+)*",
    r"(?:arXiv|ePrint) [\d./]+|\d\d\d\d\.\d\d\d\d\d",
    r"(?:ICLR|NDSS|USENIX Security|USENIX ATC|ICML) 20\d\d",
    r"version 2|FlashAttention-2|variance 1|GPT-2|Python 3\.\d+|T = \d+(?: and \d+)?|95 % interval",
)
#: The unit of a result, behind its number.
RESULT = re.compile(NUMBER.pattern + r"(?: to [-+]?[\d.]+)?(?: ?%| times\b| ±)")
#: Numbers with such a unit that are no results: settings, questions, promises, other people's.
NO_RESULTS = (
    r"3\.4 times fewer bytes and 1\.4 times less latency",  # the abstract of version 3
    r"27\.3 % lower after one million tokens and 18\.8 % higher",  # the abstract of 2604.23434
    r"(?:is|books,) 20 times that of",  # two published weights
    r"costs? more than 2 %|has 5 % of its own|by 8\.2 % of perplexity",
    r"prediction and 1 %, 512 bytes",  # test_threat_model.py holds it
)


def prose_of(page: str) -> str:
    """A page without tables, code, formulas and names."""
    lines = (line for line in text_of(page).splitlines() if not line.startswith("|"))
    return blanked("\n".join(lines), CODE, *NAMES)


@pytest.mark.parametrize("page", PAGES)
def test_prose_has_few_numbers(page: str) -> None:
    found = NUMBER.findall(prose_of(page))
    assert len(found) <= (20 if page == "README.md" else 40), found


@pytest.mark.parametrize("page", PAGES)
def test_a_result_that_prose_says_is_in_the_list(page: str) -> None:
    claims = [re.escape(claim) for claim in LEDGER.get(page, {})]
    text = blanked(text_of(page), *claims)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    prose = blanked(prose, *NO_RESULTS, CODE, *NAMES)
    left = [prose[max(0, m.start() - 60) : m.end() + 40] for m in RESULT.finditer(prose)]
    assert not left, f"{page} says results that docs/ledger.yaml does not bind: {left}"


def test_the_list_is_short() -> None:
    assert set(LEDGER) <= {*PAGES}
    assert sum(map(len, LEDGER.values())) <= 30


CLAIMS = [(page, claim) for page, claims in LEDGER.items() for claim in claims]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_a_claim_is_what_its_source_says(page: str, claim: str) -> None:
    assert text_of(page).count(claim) == 1, f"{page} should say this once: {claim!r}"
    printed = numbers(claim)
    sources = LEDGER[page][claim]
    values: list[float | None] = []
    for source in sources if isinstance(sources, list) else [sources]:
        value = None if source is None else eval(source, dict(vars(ledger_sources)))
        values += value if isinstance(value, list) else [value]
    assert len(values) == len(printed), f"{claim!r} says {printed}, its sources are {values}"
    for digits, value in zip(printed, values, strict=True):
        if value is not None:
            assert agrees(digits, value), f"{page}: {claim!r} says {digits}, its source {value}"


def test_tables_of_numbers_are_generated() -> None:
    cell = re.compile(r"\| *[-+]?\d[\d.,]*(?: ± [\d.]+| %)? *(?=\|)")
    found = {
        page: [line for line in text_of(page).splitlines() if len(cell.findall(line)) > 1]
        for page in PAGES
        if page.endswith(".md") and page != "README.md"  # test_counted_tables.py holds its tables
    }
    assert {page: lines for page, lines in found.items() if lines} == {}


COUNT = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty"
COUNTED = re.compile(
    rf"\b(?:{COUNT}) of (?:the |all )?(?:{COUNT})\b|\b(?:{COUNT})\b(?: of (?:the )?\w+)?"
    r"(?: [\w']+){0,2} (?:claims?|comparisons?|intervals?|labels|pairs|undecided|hold|held|fail)\b"
    # Durations and factors; those of a setting ("ten times the weight") are no results.
    rf"|\b(?:half an?|{COUNT}|\w+teen) (?:seconds?|minutes?|hours?|others|points|per cent|tables"
    r"|figures|times (?!the (?:tokens|weight|learning|spread)))\b|\bhalf as much\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PAGES)
def test_results_are_digits_which_the_list_holds(page: str) -> None:
    assert not COUNTED.findall(blanked(text_of(page), CODE))


# Rounding on an emulated GPU, bytes, and agreement.
OF_NO_PROCESSOR = {
    "cuda_speed",
    "cuda_float32_sums_emulated",
    "cuda_sharp_rows_emulated",
    "private_lines",
    "private_families",
    "private_protocols",
    "strangers",
    "transformers_models",
}


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_every_result_names_its_processor(page: Path) -> None:
    # A name alone is that of several generations: aero.internals.machine.
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
