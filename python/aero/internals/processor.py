"""The processor that a result was measured on; needs no torch."""

from __future__ import annotations

import platform
from pathlib import Path

_FILE = Path("/proc/cpuinfo")
_NUMBERS = {"family": "cpu family", "model": "model"}


def processor() -> str:
    """Returns the processor's name with its family and model.

    A name alone may be that of several generations: AMD calls Zen 4 (family 25) and Zen 5 (26)
    "AMD EPYC". ARM's processors have neither, and show their architecture.
    """
    try:
        text = _FILE.read_text("utf-8").partition("\n\n")[0]
    except OSError:
        text = ""
    parted = (line.partition(":") for line in text.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in parted}
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{word} {facts[key]}" for word, key in _NUMBERS.items() if facts.get(key)]
    return ", ".join([name, " ".join(numbers)]) if numbers else name
