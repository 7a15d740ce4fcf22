"""Attention maps are the weights whose entropies the network reports."""

import pytest
import torch

import aero
from aero import AeroConfig, AeroForCausalLM
from aero.models.row_entropies import attention_maps


@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+ScFuFFN)"])
def test_the_rows_of_a_map_have_the_entropies_of_the_network(label: str) -> None:
    torch.manual_seed(0)
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny")).eval()
    for name, parameter in model.named_parameters():
        if "temperature" in name:
            torch.nn.init.uniform_(parameter, 0.02, 0.1)
    tokens = torch.tensor([[5, 3, 8, 1, 9], [2, 7, 7, 4, 6]])
    maps = attention_maps(model, tokens).double()
    assert maps.triu(1).abs().max() == 0
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]).double())
    entropies = torch.special.entr(maps).sum(-1)
    given = torch.stack(list(aero.entropies(model, tokens).layers)).double()
    torch.testing.assert_close(entropies, given, atol=1e-5, rtol=1e-5)
