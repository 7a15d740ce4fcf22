"""The committed run of networks of GPT-2 small's size, beside what is predicted now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aero.architecture import ArchitectureSpec
from aero.mpc.simulation import described_spec
from aero.private.prediction import predicted_costs, remainder
from aero.private.settings import PrivateSettings

ROOT = Path(__file__).parents[4] / "benchmarks" / "results"
ROWS = json.loads((ROOT / "private_whole_amd_epyc_202611.json").read_text())
PROMPT = 128


def name(row: dict[str, Any]) -> str:
    return f"{row['label']} {row['settings']['protocol']}"


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_whole_network_sends_what_is_predicted(row: dict[str, Any]) -> None:
    settings = PrivateSettings.from_dict(row["settings"])
    assert (row["model"], len(row["passes"])) == ("gpt2", 3)
    described = described_spec(ArchitectureSpec.from_label(row["label"]))
    for number, passed in enumerate(row["passes"]):
        costs = predicted_costs(described, PROMPT + number, settings, 1 if number else PROMPT)
        assert [*passed["bytes"]] == [
            "embedding", *(f"layer {layer}" for layer in range(12)), "head", "argmax",
        ]  # fmt: skip
        for piece, sent in passed["bytes"].items():
            if settings.protocol == "cheetah":  # which makes transfers and triples in advance
                left = remainder(costs[piece], 1, sent)
                assert abs(left) < 2e-3 * costs[piece].comm_bytes, (number, piece)
            else:
                assert abs(sent - costs[piece].comm_bytes) <= 128, (number, piece)
        whole = sum(costs[piece].comm_bytes for piece in passed["bytes"])
        assert sum(passed["bytes"].values()) == pytest.approx(whole, rel=5e-3)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_whole_network_takes_less_memory_than_is_estimated(row: dict[str, Any]) -> None:
    assert 0.5 * row["predicted_memory"] < row["memory"] < row["predicted_memory"]


def test_a_later_token_of_semi2k_does_not_open_the_weights_again() -> None:
    [row] = [one for one in ROWS if name(one) == "SM+ScFuFFN semi2k"]
    first, second, _ = (sum(passed["bytes"].values()) for passed in row["passes"])
    # The estimate before any run: 3.4 GB for the prompt.
    assert first == pytest.approx(3.4e9, rel=0.02)
    assert second < first / 35
