"""The page of `aero show`: its contents, and a stranger's tokens that do no harm."""

import json
import re

import numpy as np
import pytest

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.report.show_page import at_temperature, show_page, token_costs

SPEC = ArchitectureSpec.from_label("SM+ScFuFFN", model="mini", num_layers=2, num_heads=2)
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[2J", "$x_"]


@pytest.fixture(scope="module")
def page() -> str:
    """Two layers of two heads that look at four strange tokens alike."""
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    return show_page(SPEC, HOSTILE, np.tile(even, (2, 2, 1, 1)), name="a <run>")


def own_text(page: str) -> str:
    """The page without plotly's library, which is no text of ours."""
    scripts = re.findall(r"<script[^>]*>.*?</script>", page, re.S)
    return page.replace(max(scripts, key=len), "")


def test_temperature_sharpens_flattens_and_leaves_one_alone():
    weights = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    scores = np.log([0.7, 0.2, 0.1])
    for temperature in (0.25, 1.0, 4.0):
        expected = np.exp(scores / temperature) / np.exp(scores / temperature).sum()
        found = at_temperature(weights, temperature)
        np.testing.assert_allclose(found[0], expected, rtol=1e-12)
        assert found[1].tolist() == [1.0, 0.0, 0.0]


def test_a_strangers_tokens_stay_text(page):
    text = own_text(page)
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert "a &lt;run&gt;" in text


def test_the_page_asks_nothing_of_the_network(page):
    text = own_text(page)
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "default-src 'none'" in text


def test_entropies_tokens_and_every_place_of_the_slider_are_there(page):
    text = own_text(page)
    assert text.count("<td>0.79</td>") == 4  # log(24) / 4 of each head
    assert "1.39 of 1.39" in text and "0.00 of 0.00" in text
    labels = re.findall(r'"label":"([0-9.]+)"', text)
    assert labels == [f"{t:g}" for t in (0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4)]
    assert json.dumps("layer 1, head 1").strip('"') in text


def test_costs_are_those_of_one_more_token_at_the_networks_sizes(page):
    costs = token_costs(SPEC, 4)
    assert list(costs) == ["SM+LN+G", "SM+LN+R", "SM+FN+R", "SM+ScFuFFN"]
    report = mpc.simulate_generation(SPEC.replace(context_length=4), new_tokens=2)
    assert costs["SM+ScFuFFN"] == report.per_token[1].comm_bytes
    assert min(costs, key=costs.get) == "SM+ScFuFFN"
    assert f"{costs['SM+ScFuFFN'] / 1e6:.2f}" in page
    assert list(token_costs(ArchitectureSpec.from_label("SM", model="tiny"), 4))[-1] == "SM"
