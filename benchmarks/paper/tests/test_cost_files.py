"""The reproduced tables and figures as files."""

import html
import json

from benchmarks.paper import cost_tables as cost_files
from benchmarks.paper.cost_tables import reproduce_costs


def test_the_files_hold_what_was_found(tmp_path):
    found = reproduce_costs()
    paths = {p.name: p for p in cost_files.write_cost_tables(found, tmp_path / "new" / "folder")}
    assert paths["costs.txt"].read_text() == f"{found.to_text()}\n"
    assert json.loads(paths["costs.json"].read_text()) == found.to_dict()
    page = paths["costs.html"].read_text()
    assert all(html.escape(claim.text) in page for claim in found.claims)
    assert all(html.escape(one.of) in page for one in found.comparisons)
    assert page.count("<td>SM+ScFuFFN_i6</td>") == 2 * 2 + 1  # twice in Tables 4 and 5, Figure 1
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert (
        "16.88" in page
    )  # minutes to send 25.32 GB at 100 Mbit/s each way: 25.32e9 * 8 / 2e8 / 60
    for name in ("figure-1.svg", "figure-15.svg"):
        assert paths[name].read_text().startswith("<svg")
        assert paths[name].stat().st_size > 10_000
