import json
import pickle
import re

import pytest
import torch
from tests.python.refusals import assert_refused
from transformers import AutoConfig

from aero.architecture import ArchitectureSpec
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.initialization import initialize_module

from .labels import LABELS


def test_a_label_and_sizes_make_the_spec():
    config = AeroConfig.from_label(
        "EReg(SM(t)+ScFuFFN_i1)", model="tiny", num_layers=3, entropy_weight=0.5
    )
    expected = ArchitectureSpec.from_label("EReg(SM(t)+ScFuFFN_i1)", model="tiny", num_layers=3)
    assert config.spec == expected
    assert config.entropy_weight == 0.5
    assert AeroConfig.from_spec(expected, entropy_weight=0.5).to_dict() == config.to_dict()


def test_names_of_transformers_are_aliases():
    config = AeroConfig.from_label("SM", model="tiny", num_hidden_layers=3)
    assert (config.num_hidden_layers, config.num_layers) == (3, 3)
    assert (config.hidden_size, config.intermediate_size) == (32, 128)
    assert (config.num_attention_heads, config.head_dim) == (2, 16)
    assert config.max_position_embeddings == 32
    assert config.tie_word_embeddings is True
    config.vocab_size = 300
    assert config.spec.vocab_size == 300


def test_a_bare_configuration_is_the_mini_baseline():
    spec = ArchitectureSpec.from_label("SM+LN+G", model="mini")
    assert AeroConfig().spec == spec
    assert AeroConfig(num_layers=2).spec == spec.replace(num_layers=2)


def test_every_field_is_written_and_read_again(tmp_path):
    config = AeroConfig.from_label(
        "EReg(SM(t)+FN+ScFFN)", model="tiny", tolerance_margin=0.2, pad_token_id=3
    )
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "aero"
    assert written["attention_temperature"] == "head_position"
    # Nothing rests on defaults that a later version might change.
    names = {name for name in config.to_dict() if name in AeroConfig.__dataclass_fields__}
    own = names - set(AeroConfig.__mro__[1].__dataclass_fields__)
    assert own <= set(written)
    for reloaded in (
        AeroConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
        pickle.loads(pickle.dumps(config)),
    ):
        assert isinstance(reloaded, AeroConfig)
        assert reloaded.spec == config.spec
        assert reloaded.tolerance_margin == 0.2
        assert reloaded.pad_token_id == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"entropy_wieght": 1}, ("'entropy_wieght'", "did you mean 'entropy_weight'")),
        ({"num_layer": 1}, ("'num_layer'", "did you mean 'num_layers'")),
        ({"hidden_sizes": 1}, ("'hidden_sizes'", "did you mean 'hidden_size'")),
        ({"tolerance": 1}, ("'tolerance'", "did you mean 'tolerance_margin'")),
        ({"max_entropy": "log"}, ("max_entropy", "log_context, log_visible", "got 'log'")),
        ({"entropy_reduction": "sum"}, ("entropy_reduction", "position_sum", "got 'sum'")),
        ({"trainable_scales": "gamma"}, ("trainable_scales", "alpha", "gamma")),
        ({"norm_statistics": "batch"}, ("norm_statistics", "process, synchronized", "got 'batch'")),
        ({"temperature_parametrization": "exp"}, ("parametrization", "identity, log", "got 'exp'")),
        ({"num_heads": 7}, ("num_heads",)),
        ({"ffn": "swish"}, ("ffn", "swish")),
        ({"entropy_weight": -1.0}, ("entropy_weight", "a number from 0", "got -1")),
        ({"tolerance_margin": "0.1"}, ("tolerance_margin", "a number from 0", "got '0.1'")),
        ({"temperature_init": 0}, ("temperature_init", "a number that is not 0", "got 0")),
        ({"layer_norm_epsilon": 0.0}, ("layer_norm_epsilon", "a number above 0", "got 0.0")),
        ({"output_attentions": True}, ("output_attentions", "belongs to calls")),
        ({"num_layers": 2, "num_hidden_layers": 3}, ("num_layers", "twice", "num_hidden_layers")),
    ],
)
def test_what_no_configuration_can_be_is_named(fields, named):
    assert_refused(lambda: AeroConfig(**fields), *named)


def test_generation_does_not_take_the_attention_temperature_for_its_own():
    model = AeroForCausalLM(AeroConfig.from_label("SM(t)+G", model="tiny"))
    assert model.generation_config.temperature in (None, 1.0)


def test_embedding_dropout_drops_in_training_alone():
    torch.manual_seed(0)
    config = AeroConfig.from_label("SM+LN+G", model="tiny", embedding_dropout=0.5)
    model, ids = AeroForCausalLM(config), torch.arange(16)[None]
    stream = model.transformer(ids, output_hidden_states=True).hidden_states[0]
    dropped = stream == 0
    assert 0.3 < dropped.float().mean() < 0.7
    whole = model.eval().transformer(ids, output_hidden_states=True).hidden_states[0]
    torch.testing.assert_close(stream[~dropped], 2 * whole[~dropped])
    assert not (whole == 0).any()


@pytest.mark.parametrize("name", ["residual_dropout", "attention_dropout"])
@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+ScFuFFN)", "SM+FN+R+C4", "SOTA:SM+FN+R"])
def test_dropout_of_blocks_drops_in_training_alone_and_is_saved(label, name, tmp_path):
    torch.manual_seed(0)
    plain = AeroForCausalLM(AeroConfig.from_label(label, model="tiny"))
    for parameter in plain.parameters():  # shaped attention starts without weights
        torch.nn.init.normal_(parameter, 0.5, 0.2)
    config = AeroConfig.from_label(label, model="tiny", **{name: 0.5})
    model, ids = AeroForCausalLM(config), torch.arange(16)[None]
    model.load_state_dict(plain.state_dict())
    model.save_pretrained(tmp_path)
    model = AeroForCausalLM.from_pretrained(tmp_path)
    assert getattr(model.config, name) == 0.5
    whole = plain.eval()(ids).logits
    assert torch.equal(model.eval()(ids).logits, whole)
    dropped = [model.train()(ids).logits for _ in range(2)]
    assert not torch.equal(*dropped) and all(x.isfinite().all() for x in dropped)
    if name == "attention_dropout":  # of the first layer, whose inputs are the same
        first = [network(ids).entropies[0] for network in (model, plain.train())]
        torch.testing.assert_close(*first)


@pytest.mark.parametrize(
    ("norm", "kind"),
    [
        ("none", "channel"),
        ("layer", "channel"),
        ("foldable_channel", "channel"),
        ("foldable_scalar", "scalar"),
    ],
)
def test_a_foldable_final_norm_is_of_the_kind_of_the_others(norm, kind):
    spec = AeroConfig.from_label("SM+R", model="tiny").spec.replace(
        norm=norm, final_norm="foldable"
    )
    model = AeroForCausalLM(AeroConfig.from_spec(spec))
    assert model.transformer.ln_f.kind == kind


@pytest.mark.parametrize("is_training", [True, False])
def test_initializing_weights_leaves_the_mode_of_a_spectral_norm(is_training):
    model = AeroForCausalLM(AeroConfig.from_label("SM+SNFFN", model="tiny")).train(is_training)
    initialize_module(model.transformer.h[0].mlp.c_fc, model.config)
    assert {module.training for module in model.modules()} == {is_training}


@pytest.mark.parametrize("label", [one for one in LABELS if not re.search(r"\+[CDS]\d", one)])
def test_a_configuration_from_before_there_were_convolutions_has_none(label):
    config = AeroConfig.from_label(label, model="tiny")
    older = config.to_dict()
    del older["convolution"], older["convolution_taps"]
    assert AeroConfig.from_dict(older).spec == config.spec
