"""Numbers as the report prints them."""

import pytest

from aero.report import text
from aero.report.report_file import ComparisonEntry, Spread

HEADS = [[0, 1], [0, 2], [3, 0]]
COMPARED = ComparisonEntry(
    network="A",
    against="B",
    quantity="perplexity",
    difference=-0.1,
    low=-0.5,
    high=0.25,
    seeds=2,
    verdict="undecided",
)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (text.significant(9.0451), "9.045"),
        (text.significant(25317.2), "25317"),
        (text.significant(0.012345, 3), "0.0123"),
        (text.significant(0.0), "0"),
        (text.significant(None), "-"),
        (text.with_spread(Spread(mean=9.05, standard_deviation=0.07, values=[])), "9.05 ± 0.07"),
        (text.with_spread(Spread(mean=9.05, standard_deviation=None, values=[])), "9.05"),
        (text.with_spread(None), "-"),
        (text.gigabytes(6.34e9), "6.34"),
        (text.gigabytes(None), "-"),
        (text.large_count(14495514624), "14.5B"),
        (text.large_count(1000), "1.00k"),
        (text.large_count(512), "512"),
        (text.large_count(None), "-"),
        (text.change(0.2541), "+25.4 %"),
        (text.change(None), "-"),
        (text.interval_cell(COMPARED), "-50.0 % to +25.0 %"),
        (text.duration(3725), "1 h 2 min"),
        (text.duration(62), "1 min 2 s"),
        (text.duration(42.3), "42 s"),
        (text.duration(None), "-"),
        (text.operations("SM:24xR^{128x128} R:6xR^{128x512}"), "SM 24 of 128x128, R 6 of 128x512"),
        (text.heads(HEADS), "L0 H1, H2; L3 H0"),
        (text.heads(HEADS, most=2), "L0 H1, H2 and 1 more"),
        (text.heads([]), "none"),
        (text.heads(None), "none"),
    ],
)
def test_a_number_is_printed_for_readers(printed, expected):
    assert printed == expected
