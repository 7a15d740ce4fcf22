"""The memory of a run is known before it starts, and one that does not fit is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aero.architecture import ArchitectureSpec
from aero.cli import app
from aero.mpc.simulation import described_spec
from aero.private.parties import memory
from aero.private.parties.memory import check_memory, in_slices, memory_of_run
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

CHEAP = {"client_one_hot": True, "last_token_head": True}


def described(label: str = "SM+ScFuFFN", **sizes: Any) -> dict[str, Any]:
    """As a network's file, with the embedding's and the products' tensors."""
    spec = ArchitectureSpec.from_label(label, **sizes)
    found = described_spec(spec)
    names = {name: [1] for one in found["operations"] for name in one.get("weights", {}).values()}
    layers = [one for entry in found["operations"] for one in entry.get("operations", ())]
    for one in layers:
        for name in one.get("weights", {}).values():
            for layer in range(spec.num_layers):
                names[name.replace("{layer}", str(layer))] = [1]
    return {**found, "tensors": {name: {"shape": shape} for name, shape in names.items()}}


def test_the_embedding_of_gpt2_under_cheetah_takes_what_was_measured_per_weight() -> None:
    # 3,072 bytes for each of the table's weights at 128 tokens: 8 for a coefficient of each of 3
    # primes, and 64 of the 8,192 coefficients hold a weight.
    takes = memory_of_run(described(), PrivateSettings(**CHEAP), 128).party_bytes
    assert takes == pytest.approx(3072 * 50257 * 768, rel=0.01)


@pytest.mark.parametrize("protocol", ["semi2k", "aby3"])
def test_without_ciphertexts_a_product_takes_50_bytes_a_weight(protocol: str) -> None:
    takes = memory_of_run(described(), PrivateSettings(protocol=protocol, **CHEAP), 128).party_bytes
    assert takes == pytest.approx(50 * 50257 * 768, rel=0.15)


def test_parties_on_one_machine_add_up() -> None:
    network, settings = described(model="tiny"), PrivateSettings()
    one, two = (memory_of_run(network, settings, 8).run_bytes(parties) for parties in (1, 2))
    assert two - one == memory_of_run(network, settings, 8).party_bytes


def test_a_run_that_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"takes up to 1\d\d\.\d GB of memory .* may take 20\.0"):
        check_memory(described(), PrivateSettings(), 128, parties=1, most=20_000_000_000)
    check_memory(described(model="tiny"), PrivateSettings(), 8, parties=2, most=20_000_000_000)


@pytest.mark.parametrize("private_weights", [False, True])
def test_a_product_is_cut_into_as_few_slices_as_fit(private_weights: bool) -> None:
    network, settings = described(), PrivateSettings(private_weights=private_weights, **CHEAP)
    machine = {"parties": 2, "most": 100_000_000_000}
    whole = memory_of_run(network, settings, 128).run_bytes(2)
    assert whole > machine["most"]
    with pytest.raises(ValueError, match="a smaller largest_product"):
        check_memory(network, settings, 128, **machine)
    cut = in_slices(network, settings, 128, **machine)
    check_memory(network, cut, 128, **machine)
    count = len(cut.slice_lengths(50257, 50257 * 768))
    fewer = {1: 0, 2: 1, 3: 2, 4: 3, 6: 4, 8: 6, 12: 8}[count]
    limit = -(-50257 // fewer) * 768
    larger = dataclasses.replace(settings, largest_product=limit)
    assert memory_of_run(network, larger, 128).run_bytes(2) > machine["most"]
    # A slice takes its part of what the whole product takes: of both parties where each has shares.
    saved = whole - memory_of_run(network, cut, 128).run_bytes(2)
    product = 3072 * 50257 * 768 * (1 if private_weights else 2)
    assert saved == pytest.approx(product * (1 - 1 / count), rel=0.03)


def test_what_fits_is_not_cut_and_what_cannot_fit_is_refused() -> None:
    small, settings = described(model="tiny"), PrivateSettings(**CHEAP)
    assert in_slices(small, settings, 8, parties=2) == settings
    least = {"parties": 2, "most": 2_000_000_000}
    assert in_slices(described(), settings, 128, **least) == settings
    with pytest.raises(ValueError, match=r"may take 2\.0"):
        check_memory(described(), settings, 128, **least)
    # A given size is the largest still.
    given = PrivateSettings(largest_product=1 << 20, **CHEAP)
    cut = in_slices(described(), given, 128, parties=2, most=8_000_000_000)
    assert cut.largest_product <= 1 << 20


def test_prompts_side_by_side_take_more() -> None:
    network, settings = described(model="tiny"), PrivateSettings(**CHEAP)
    one, many = (memory_of_run(network, settings, 8, sequences=n).run_bytes(2) for n in (1, 16))
    assert many > one


def test_a_command_refuses_before_anything_starts(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "most_memory", lambda given=None: 10**6)
    for command in (["run"], ["chat", "--yes"]):
        arguments = ["private", *command, str(export), "--prompt-tokens", "1,2,3"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "GB of memory here, and may take 0.0" in done.output


def test_a_server_refuses_a_prompt_that_does_not_fit_and_goes_on(serving: Any) -> None:
    server = serving(memory_bytes=1_000_000)
    with pytest.raises(PartyError, match=r"of memory here, and may take 0\.0"):
        server.ask()
    assert "of memory here" in server.wait_for("refused")["reason"]
