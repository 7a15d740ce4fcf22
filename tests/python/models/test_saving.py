import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from aero.models import AeroForCausalLM

from .labels import FAMILIES, LABELS, tiny


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_saved_and_loaded_models_are_bit_identical(label, family, tmp_path):
    model = tiny(label, family)
    tokens = torch.randint(256, (2, 32))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
        model.train()(tokens)
    model.eval().save_pretrained(tmp_path)
    loaded, info = AeroForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert (tmp_path / "model.safetensors").is_file()
    assert not any(info.values())
    assert loaded.config.spec == model.config.spec
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name
    # Not bit by bit: MKL's rounding depends on where in memory a loaded weight lies.
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def test_auto_class_finds_the_model(tmp_path):
    tiny("SM+ScFuFFN").save_pretrained(tmp_path)
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path), AeroForCausalLM)


def test_missing_parameters_start_as_in_a_new_model_and_others_are_kept(tmp_path):
    plain = tiny("SM+ScFFN")
    plain.save_pretrained(tmp_path)
    config = tiny("EReg(SM(t)+ScFFN)", temperature_init=0.25).config
    loaded, info = AeroForCausalLM.from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert {name.rpartition("attn.")[2] for name in info["missing_keys"]} == {
        "temperature.value",
        "entropy_threshold",
    }
    for block in loaded.transformer.blocks():
        assert (block.attn.temperature.value == 0.25).all()
        assert (block.attn.entropy_threshold == 0.5).all()
    for name, value in plain.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_tied_embeddings_stay_tied_and_untied_ones_do_not(tmp_path):
    for is_tied in (True, False):
        tiny("SM+G", tied_embeddings=is_tied).save_pretrained(tmp_path / str(is_tied))
        loaded = AeroForCausalLM.from_pretrained(tmp_path / str(is_tied))
        assert (loaded.lm_head.weight is loaded.transformer.wte.weight) == is_tied


def test_resizing_token_embeddings_keeps_the_spec_true():
    model = tiny("SM+LN+G")
    model.resize_token_embeddings(300)
    assert model.config.spec.vocab_size == 300
    assert model(torch.tensor([[299]])).logits.shape[-1] == 300


@pytest.mark.parametrize(
    "label", ["SOTA:EReg(SM(t)+FN+R)", "EReg(SM(t)+LN+ScFuFFN)", "SM+LR(global)"]
)
def test_what_a_file_lacks_starts_as_in_a_new_network(label, tmp_path):
    new = tiny(label, temperature_init=0.25, threshold_init=0.2)
    new.config.save_pretrained(tmp_path)
    embeddings = {"transformer.wte.weight": torch.zeros_like(new.transformer.wte.weight)}
    save_file(embeddings, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = AeroForCausalLM.from_pretrained(tmp_path).state_dict()
    compared = 0
    for name, value in new.state_dict().items():
        if value.dim() < 2:  # matrices are drawn
            assert torch.equal(loaded[name], value), name
            compared += 1
    assert compared > 8
