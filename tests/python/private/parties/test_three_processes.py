"""Three processes compute under ABY3 over three TLS links; needs the private environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aero
from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.compute.calls import Call
from aero.private.parties.two_processes import generate_over_tcp
from aero.private.prediction import predicted_costs
from aero.private.settings import PrivateSettings

from ...export.conftest import trained

pytestmark = pytest.mark.private

PROMPTS = (3, 141, 59), (0, 0, 0)


def test_three_processes_compute_at_the_predicted_bytes_whatever_the_prompt(
    tmp_path: Path,
) -> None:
    folder = Path(aero.export_weights(trained("SM+ScFuFFN", num_layers=1), tmp_path))
    settings = PrivateSettings(
        protocol="aby3", client_one_hot=True, last_token_head=True, reveal="last-logits",
        argmax=False,
    )  # fmt: skip
    network, sent = read_network(folder), []
    for prompt, count in zip(PROMPTS, (2, 1), strict=True):
        found = generate_over_tcp(folder, prompt, count, settings, encrypted=True)
        read = [*prompt]
        for index, (token, calls) in enumerate(zip(found.tokens, found.calls, strict=True)):
            plain = forward(network, [read])[0, -1]
            # 18 fraction bits, and (1 + x / 256)^256 for e^x, as of the other protocols.
            assert np.abs(found.logits[index][-1] - plain).max() < 2e-2 * np.abs(plain).max()
            costs = predicted_costs(network.description, len(read), settings, 1 if index else None)
            for call in calls:
                # But for some dozen bytes of names and sizes.
                assert abs(call.traffic.comm_bytes - costs[call.name].comm_bytes) < 200, call
            read.append(token)
        sent.append([_sent_by_all(call) for call in found.calls[0]])
    assert sent[0] == sent[1]


def _sent_by_all(call: Call) -> tuple[str, int]:
    return call.name, call.traffic.comm_bytes
