"""The threat model's statements are held by tests and code that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "threat_model.md").read_text()
TESTS = {path.name: path for path in Path(__file__).parent.rglob("test_*.py")}
CODE = ROOT / "python" / "aero" / "private"

NAMED = sorted(set(re.findall(r"\btest_\w+(?!\.py)\b", PAGE)) - {"test_"})
FILES = sorted(set(re.findall(r"`((?:\w+/)?\w+\.py)(?:: (\w+))?", PAGE)))


@pytest.mark.parametrize("name", [name for name in NAMED if f"{name}.py" not in TESTS])
def test_every_test_that_the_page_names_exists(name: str) -> None:
    assert any(f"def {name}(" in path.read_text() for path in TESTS.values())


@pytest.mark.parametrize(("file", "name"), FILES)
def test_every_place_that_the_page_names_exists(file: str, name: str) -> None:
    path = TESTS.get(file, CODE / file)
    assert re.search(rf"(def|class) {name}\b", path.read_text()) or not name


def test_the_page_names_the_numbers_of_the_code() -> None:
    from aero.private import prediction
    from aero.private.links import channel, tunnel
    from aero.private.parties import peer, serving
    from aero.private.parties.party import PartyJob
    from aero.private.parties.supervision import TimeLimits

    hello, of_one = TimeLimits().hello, PartyJob.strangers
    assert f"has {hello:.0f} seconds for its whole first message of TLS" in PAGE
    assert f"holds {serving._MOST_STRANGERS} of them at once, {of_one} of one address" in PAGE
    assert serving._MOST_WAITING == 8 and "Eight clients may wait" in PAGE
    sizes = channel._MESSAGE_BYTES >> 10, channel.FRAME_BYTES >> 10, tunnel._MOST_STREAMS
    assert "at most {} KiB, a frame {} KiB, a session {} streams".format(*sizes) in PAGE
    waiting = peer.MOST_FRAMES, peer.MOST_FRAMES * channel.FRAME_BYTES >> 20
    assert "{} frames wait at most, {} MiB".format(*waiting) in PAGE
    assert channel._MESSAGES_PER_SECOND == 5 and channel._MESSAGES_AT_ONCE == 30
    assert "after the first 30 messages five come per second" in PAGE
    padding = prediction._MOST_SHARE, prediction._MOST_PER_ROUND, prediction._MOST_PER_THREAD >> 20
    assert (
        "{:.0%}, {} bytes per round and {} MiB per thread".format(*padding).replace("%", " %")
        in PAGE
    )
    assert TimeLimits().run == 86400 and "a day by default" in PAGE
