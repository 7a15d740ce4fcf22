"""Pages as a screen reader and a keyboard meet them."""

import html.parser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from aero.report import write_report
from aero.report.show_page import ShownNetwork, show_page

# Every rule of WCAG 2.1 A and AA that axe-core knows; its findings become the page.
_AXE = """<script>{axe}</script><script>
axe.run(document, {{runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}).then(found => {{
  const element = document.createElement("axe-result");
  element.textContent = JSON.stringify(found.violations.map(
    rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))]));
  document.body.replaceChildren(element);
}});
</script>"""


@pytest.fixture(scope="module")
def page(three_seed_runs, tmp_path_factory):
    """The report of two networks."""
    return write_report([three_seed_runs], tmp_path_factory.mktemp("page")).html


class Rules(html.parser.HTMLParser):
    """Collects the places that break the rules that can be read off the text of a page."""

    def __init__(self):
        super().__init__()
        self.broken, self.levels, self.names = [], [], {}

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "html" and not given.get("lang"):
            self.broken.append("html without lang")
        if tag in ("img", "svg") and not (given.get("alt") or given.get("aria-label")):
            self.broken.append(f"{tag} without a name")
        if tag == "div" and given.get("class") == "wide" and given.get("tabindex") != "0":
            self.broken.append("the keyboard cannot reach a scrolling part")
        if given.get("role") == "region" and not given.get("aria-label"):
            self.broken.append("region without a name")
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))
        self.names[tag] = self.names.get(tag, 0) + 1


def contrast(one, other):
    """Of two colours, as WCAG 2.1 defines it."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_rules_that_the_text_shows_are_kept(page):
    text = page.read_text(encoding="utf-8")
    rules = Rules()
    rules.feed(text)
    assert rules.broken == []
    assert rules.names["h1"] == rules.names["main"] == 1
    assert rules.levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(rules.levels, rules.levels[1:], strict=False))


def test_the_page_of_a_network_keeps_them_too():
    even = np.ones((2, 2, 2, 2)) / 2
    network = ShownNetwork("one", ["a", "b"], even, np.zeros((2, 2)), None)
    rules = Rules()
    rules.feed(show_page([network, network]))
    assert rules.broken == []
    assert rules.names["h1"] == rules.names["main"] == 1
    assert all(b - a <= 1 for a, b in zip(rules.levels, rules.levels[1:], strict=False))


def test_the_letters_of_coloured_tokens_stand_out_in_light_and_dark():
    colors = re.findall(r"--ink: (#\w+);.*--warm: (#\w{6})", show_page([]))
    assert len(colors) == 2
    assert min(contrast(ink, warm) for ink, warm in colors) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_from_the_page(page, scheme):
    style = re.search(r"<style>\n(.*?)</style>", page.read_text("utf-8"), re.S).group(1)
    roots = re.findall(r":root \{([^}]*)\}", style)
    assert len(roots) == 2 and "prefers-color-scheme: dark" in style
    found = dict(re.findall(r"--(\w+): (#\w+)", roots[scheme == "dark"]))
    colors = {
        name: c if len(c) == 7 else "#" + "".join(x * 2 for x in c[1:]) for name, c in found.items()
    }
    letters = {*re.findall(r"[^-]color: var\(--(\w+)\)", style)}
    assert {"ink", "soft", "bad"} <= letters
    pairs = [(one, ground) for one in sorted(letters) for ground in ("page", "panel")]
    assert [pair for pair in pairs if contrast(*map(colors.get, pair)) < 4.5] == []
    assert not re.search(r"[^-]color: #", style)


@pytest.mark.skipif(
    not (shutil.which("chromium") and os.environ.get("AXE")),
    reason="needs chromium, and AXE: the path of axe.min.js",
)
def test_axe_finds_nothing_in_a_browser(page, tmp_path):
    axe = Path(os.environ["AXE"]).read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8").replace("<details>", "<details open>")
    # The page allows no scripts, and axe is one.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    judged = tmp_path / "judged.html"
    judged.write_text(text.replace("</body>", _AXE.format(axe=axe) + "</body>"), encoding="utf-8")
    found = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000",
         "--dump-dom", judged.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    (result,) = re.findall("<axe-result>(.*?)</axe-result>", found.stdout)
    assert json.loads(html.unescape(result)) == []
