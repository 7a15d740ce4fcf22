"""The page of `aero show`: its contents, and a stranger's tokens that do no harm."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import aero.report
from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.report.show_page import ShownNetwork, most_tokens, packed, show_page, token_costs

SPEC = ArchitectureSpec.from_label("SM+ScFuFFN", model="mini", num_layers=2, num_heads=2)
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[2J", "$x_"]
SCRIPT = Path(aero.report.__file__).parent / "templates" / "show.js"


def network(name="a <run>", tokens=HOSTILE, layers=2, heads=2, spec=SPEC):
    """Heads that look at all tokens that they see alike."""
    size = len(tokens)
    even = np.tril(np.ones((size, size))) / np.arange(1, size + 1)[:, None]
    largest = np.tile(np.log(np.arange(1, size + 1)), (layers, 1))
    return ShownNetwork(name, tokens, np.tile(even, (layers, heads, 1, 1)), largest, spec)


@pytest.fixture(scope="module")
def page() -> str:
    """Two layers of two heads that look at four strange tokens alike."""
    return show_page([network()])


def in_node(program: str, *values: object) -> object:
    """What a program prints that has the functions of the page's script as `show`."""
    start = f"const show = require({json.dumps(str(SCRIPT))});"
    start += "const given = JSON.parse(require('fs').readFileSync(0));"
    done = subprocess.run(
        ["node", "-e", f"{start} console.log(JSON.stringify({program}))"],
        input=json.dumps(values), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def random_weights(layers, heads, size):
    scores = np.random.default_rng(0).normal(0, 3, (layers, heads, size, size))
    scores[..., np.triu_indices(size, 1)[0], np.triu_indices(size, 1)[1]] = -np.inf
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_the_script_reads_weights_and_divides_their_scores_by_a_temperature(temperature):
    weights = random_weights(2, 3, 7)
    weights[1, 2, 5] = [0.75, 0, 0, 0, 0.25, 0, 0]  # of a head with a mask
    found = in_node(
        "[...Array(6).keys()].map(head => [...Array(7).keys()].map(row => "
        "show.rowOf(show.decoded(given[0]), 7, head, row, given[1])))",
        packed(weights), temperature,
    )  # fmt: skip
    powers = weights.reshape(6, 7, 7) ** (1 / temperature)
    expected = powers / powers.sum(axis=-1, keepdims=True)
    for head in range(6):
        for row in range(7):
            np.testing.assert_allclose(found[head][row], expected[head, row, : row + 1], atol=5e-3)
    entropy = in_node("show.entropyOf([0.5, 0.25, 0.25, 0])")
    assert entropy == pytest.approx(1.5 * np.log(2))


def after(clicks, *networks):
    """What each network shows after some clicks: (token or head, network, place)."""
    (data,) = re.findall('id="data">(.*?)</script>', show_page(networks), re.S)
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("fake_page.js")), str(SCRIPT)],
        input=json.dumps({"data": json.loads(data), "clicks": clicks}),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sharp():
    """One layer of two heads: the first looks at itself, the second at all alike."""
    even = np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None]
    largest = np.log([[1.0, 2.0, 3.0]])
    return ShownNetwork("sharp", ["a", "b", "c"], np.stack([np.eye(3), even])[None], largest)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_a_click_on_a_token_and_on_a_head_shows_where_it_looks(sharp):
    (start,) = after([], sharp)
    # Half of log 2 and of log 3: one of two heads has them.
    assert start["tokens"] == ["0.00 of 0.00", "0.35 of 0.69", "0.55 of 1.10"]
    assert start["shades"] == ["0.0%", "50.0%", "50.0%"]
    assert start["heads"] == ["0.00", "0.60"] and not start["map"]
    (token,) = after([("token", 0, 1)], sharp)
    assert token["tokens"] == ["25 %", "75 %", "later"]
    assert token["heads"] == ["0.00", "0.69"]
    assert token["status"] == "Mean of all heads: where 'b' looks."
    (head,) = after([("token", 0, 2), ("head", 0, 1)], sharp)
    assert head["tokens"] == ["33 %"] * 3 and head["map"]
    assert head["status"] == "Layer 0, head 1: where 'c' looks."
    assert head["pressed"] == ["false", "true"]
    assert after([("token", 0, 2), ("head", 0, 1), ("head", 0, 1), ("token", 0, 2)], sharp) == [
        start
    ]


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_two_networks_that_cut_the_text_alike_show_a_token_together(sharp):
    other = ShownNetwork("other", ["a", "bc"], np.tile(np.eye(2), (1, 1, 1, 1)), np.zeros((1, 2)))
    same, second, apart = after([("token", 0, 1)], sharp, sharp, other)
    assert same["tokens"] == second["tokens"] == ["25 %", "75 %", "later"]
    assert apart["tokens"] == ["0.00 of 0.00"] * 2


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_slider_changes_every_head(sharp):
    weights = np.array([[[[1.0, 0.0], [0.8, 0.2]]]])
    one = ShownNetwork("one", ["a", "b"], weights, np.log([[1.0, 2.0]]))
    (found,) = after([("temperature", 0, 1), ("token", 0, 1)], one)  # 2 to the first power
    assert found["tokens"] == ["67 %", "33 %"]  # sqrt(0.8) to sqrt(0.2) is 2 to 1


def test_a_strangers_tokens_stay_text(page):
    assert "alert(1)</script>" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert "a &lt;run&gt;" in page


def test_the_page_asks_nothing_of_the_network_and_runs_one_script_alone(page):
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';" in page
    assert not re.search(r"<[^>]* on[a-z]+=", page)


def test_without_its_script_the_page_has_tokens_and_entropies(page):
    assert page.count("data-head>0.79</button>") == 4  # log(24) / 4 of each head
    assert "1.39 of 1.39" in page and "0.00 of 0.00" in page
    # The token that sees itself alone has no share of nothing.
    assert [*map(float, re.findall(r"--s: ([0-9.]+)%", page))] == [0, 100, 100, 100]


def test_two_networks_stand_side_by_side_and_strangers_have_no_price():
    page = show_page([network("one"), network("other", ["a", "b"], layers=3, heads=1, spec=None)])
    assert page.count('<section class="network">') == 2
    assert page.count("The private cost of one more token") == 1
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    first, second = json.loads(data)
    assert [len(one["weights"]) for one in (first, second)] == [2 * 4 * 10, 2 * 3 * 3]
    assert second["words"] == ["'a'", "'b'"] and second["heads"] == 1
    assert second["most"] == [[0, 0.6931]] * 3


def test_a_page_stays_below_two_megabytes_however_many_heads_there_are():
    for heads in (4, 144, 1024, 2 * 2048):
        size = most_tokens(heads)
        assert 2 * heads * size * (size + 1) / 2 <= 1_600_000
        assert 2 * heads * (size + 1) * (size + 2) / 2 > 1_600_000
    words = ["word"] * most_tokens(1024)
    assert len(show_page([network("large", words, 32, 32, None)]).encode()) < 2_000_000


def test_costs_are_those_of_one_more_token_at_the_networks_sizes(page):
    costs = token_costs(SPEC, 4)
    assert list(costs) == ["SM+LN+G", "SM+LN+R", "SM+FN+R", "SM+ScFuFFN"]
    report = mpc.simulate_generation(SPEC.replace(context_length=4), new_tokens=2)
    assert costs["SM+ScFuFFN"] == report.per_token[1].comm_bytes
    assert min(costs, key=costs.get) == "SM+ScFuFFN"
    assert f"{costs['SM+ScFuFFN'] / 1e6:.2f}" in page
    assert list(token_costs(ArchitectureSpec.from_label("SM", model="tiny"), 4))[-1] == "SM"
