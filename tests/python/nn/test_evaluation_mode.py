"""What looks at a network leaves each of its modules in the mode that it had."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import aero
from aero import AeroConfig, AeroForCausalLM
from aero.conversion.absorbing import absorb_ffn
from aero.conversion.prunable import select_prunable_ffns
from aero.nn.linear import in_mode
from aero.train.run_callback import head_entropies
from aero.train.runs.perplexity import measure_loss
from aero.train.starting import score_deviations

IDS = torch.arange(16).view(2, 8)


def measured_loss(network: AeroForCausalLM) -> None:
    sizes = {"context_length": 8, "batch_tokens": 16}
    token_bytes = np.ones(256, dtype=np.int64)
    measure_loss(network, np.arange(17), np.array([0, 8]), token_bytes=token_bytes, **sizes)


@pytest.mark.parametrize(
    "look",
    [
        measured_loss,
        lambda network: head_entropies(network, IDS),
        lambda network: score_deviations(network, IDS),
        lambda network: aero.entropies(network, IDS),
        lambda network: select_prunable_ffns(network, [IDS]),
    ],
)
def test_a_part_that_is_kept_in_evaluation_mode_stays_there(
    look: Callable[[AeroForCausalLM], object],
) -> None:
    network = AeroForCausalLM(AeroConfig.from_label("SM+FN+R", model="tiny")).train()
    frozen = network.transformer.blocks()[0].ln_1.eval()
    look(network)
    assert network.training and not frozen.training


def test_an_absorption_keeps_the_modes_of_the_network_that_it_reads() -> None:
    network = AeroForCausalLM(AeroConfig.from_label("SM+ScFuFFN", model="tiny")).train()
    frozen = network.transformer.blocks()[0].attn.eval()
    absorb_ffn(network)
    assert network.training and not frozen.training


def test_the_modes_are_put_back_after_an_error_too() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout().eval())
    with pytest.raises(ValueError, match="stopped"), in_mode(network):
        assert not any(module.training for module in network.modules())
        raise ValueError("stopped")
    assert [module.training for module in network.modules()] == [True, True, False]
