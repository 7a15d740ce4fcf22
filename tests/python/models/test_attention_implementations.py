import pytest
import torch

from aero.models import AeroConfig, AeroForCausalLM

from .labels import tiny

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]])


def test_own_models_default_to_aero_and_refuse_foreign_attention():
    model = tiny("SM(t)+G")
    assert model.config._attn_implementation == "aero"
    model.set_attn_implementation("aero_entropy")
    assert model.config._attn_implementation == "aero_entropy"
    for name in ("sdpa", "eager", "flash_attention_2"):
        with pytest.raises(ValueError, match=f"'aero' or 'aero_entropy', got '{name}'"):
            model.set_attn_implementation(name)
        with pytest.raises(ValueError, match="would ignore temperatures"):
            AeroForCausalLM(AeroConfig.from_label("SM", model="tiny", attn_implementation=name))


def test_own_models_repeat_entropies_as_attentions_on_request():
    output = tiny("SM+G")(TOKENS, output_attentions=True)
    assert all(map(torch.equal, output.attentions, output.entropies))
    assert tiny("SM+G")(TOKENS).attentions is None
