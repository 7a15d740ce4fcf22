"""What a party of a run takes: the estimate of prices beside that of `aero private`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.python.mpc.given_configurations import BERT, GPT2, LLAMA, VIT

import aero
from aero import mpc
from aero.mpc.party_memory import PartyMemory, kept_tokens, memory_of, share_bytes
from aero.mpc.simulation import network_on
from aero.private.parties.memory import in_slices, memory_of_run
from aero.private.settings import STACKS, PrivateSettings


def memory(given: Any, **keywords: Any) -> PartyMemory:
    network, _, _ = network_on(given, **keywords)
    found = memory_of(network, mpc.simulate(given, **keywords), kept_tokens(given, network))
    assert found is not None
    return found


@pytest.mark.parametrize("protocol", [*STACKS])
@pytest.mark.parametrize("fields", [{}, {"client_one_hot": True, "last_token_head": True}])
def test_a_price_and_a_private_run_tell_the_same_memory(
    protocol: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    label, sizes = "SM+LN+G", {"model": "tiny", "num_layers": 3}
    model = aero.AeroForCausalLM(aero.AeroConfig.from_label(label, **sizes))
    aero.export_weights(model, tmp_path)
    description = json.loads((tmp_path / "network.json").read_text())
    settings = PrivateSettings(protocol=protocol, **fields)
    found = memory(str(tmp_path), stack=STACKS[protocol], context_length=16, **fields)
    of_run = memory_of_run(description, settings, 16)
    assert found.party_bytes == pytest.approx(of_run.party_bytes, rel=1e-3)
    # And the same slices, where one fits.
    most = int(1.3e9)
    cut = found.in_slices(most)
    assert cut is not None
    assert (
        cut.largest_product
        == in_slices(description, settings, 16, parties=1, most=most).largest_product
    )


def test_slices_take_less_and_what_cannot_fit_is_said() -> None:
    found = memory("gpt2", stack="spu-0.9.5", client_one_hot=True, last_token_head=True)
    assert found.run_bytes() > 100e9
    cut = found.in_slices(64e9)
    assert cut is not None and cut.run_bytes() <= 64e9 < found.run_bytes()
    assert found.in_slices(1e9) is None
    assert found.in_slices(1e12) is found


def test_a_party_takes_more_than_its_shares_and_other_stacks_tell_those_alone() -> None:
    for given in (GPT2, BERT, LLAMA):
        for stack in STACKS.values():
            operations = network_on(given, stack=stack)[0].core.operations
            shares = share_bytes({"operations": operations}, stack)
            assert memory(given, stack=stack).party_bytes > shares
    for given, stack in ((GPT2, "openbumblebee"), (VIT, "spu-0.9.5")):
        network, _, _ = network_on(given, stack=stack)
        assert memory_of(network, mpc.simulate(given, stack=stack), 128) is None
