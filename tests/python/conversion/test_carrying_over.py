import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from tests.python.refusals import assert_refused
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import aero
from aero.models import AeroForCausalLM
from aero.models.causal_lm import carry_over

from .networks import (
    CONTEXT,
    VOCABULARY,
    NanoGPT,
    aero_network,
    gpt2,
    logits_of,
    nano_gpt,
    pythia,
    relative_difference,
    tokens,
    with_trained_weights,
)

EVERY_KIND = {
    "gpt2": gpt2,
    "gpt2, ReLU": lambda: gpt2(activation_function="relu"),
    "gpt2, exact GELU": lambda: gpt2(activation_function="gelu"),
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "gpt2, other widths": lambda: gpt2(n_inner=40, n_head=4, layer_norm_epsilon=1e-3),
    "gpt2, scores scaled by layer": lambda: gpt2(scale_attn_by_inverse_layer_idx=True),
    "gpt2, scores not scaled": lambda: gpt2(scale_attn_weights=False),
    "pythia": pythia,
    "pythia, all channels rotate": lambda: pythia(
        rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 1.0, "rope_type": "default"}
    ),
    "pythia, sequential": lambda: pythia(use_parallel_residual=False),
    "pythia, tied": lambda: pythia(tie_word_embeddings=True),
    "pythia, no attention bias": lambda: pythia(attention_bias=False),
    "nanogpt": nano_gpt,
    "nanogpt, no biases": lambda: nano_gpt(bias=False),
    "nanogpt, untied": lambda: nano_gpt(tied=False),
    "nanogpt, ReLU": lambda: nano_gpt(activation=F.relu),
    "nanogpt, linear": lambda: nano_gpt(activation=lambda x: x),
    "nanogpt, activation as a module": lambda: nano_gpt(
        activation=torch.nn.GELU(approximate="tanh")
    ),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_carried_network_gives_the_same_logits(kind):
    model = EVERY_KIND[kind]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network = carry_over(model)
    assert isinstance(network, AeroForCausalLM)
    # Both round every product once in float32; three layers add a few of these 6e-8.
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5
    spec = network.config.spec
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == spec.parameter_count(training=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_model_that_was_trained_in_mixed_precision_is_still_the_same_network(monkeypatch):
    # As Trainer(bf16=True) leaves it: a forward that computes in bfloat16. Accelerators of a
    # process share their precision; this one shares it with nobody.
    for state in (AcceleratorState, PartialState):
        monkeypatch.setattr(state, "_shared_state", {})
    model, plain = gpt2(), gpt2()
    Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
    plain.load_state_dict(model.state_dict())
    rounded = relative_difference(logits_of(model, tokens()), logits_of(plain, tokens()))
    assert rounded > 1e-4  # accelerate does round
    with torch.autocast("cpu", torch.bfloat16):
        network = carry_over(model)
    assert relative_difference(logits_of(network, tokens()), logits_of(plain, tokens())) < 1e-5


def test_the_copy_is_independent_and_keeps_dtype_and_mode():
    model = gpt2().to(torch.bfloat16).train()
    network = carry_over(model)
    assert network.dtype == torch.bfloat16
    assert network.training and model.training
    with torch.no_grad():
        model.transformer.wte.weight.zero_()
    assert network.transformer.wte.weight.any()


def test_an_aero_network_is_itself():
    model = aero_network("SM+ScFuFFN")
    assert carry_over(model) is model


def test_the_entropy_penalty_of_a_model_does_not_hinder():
    model = gpt2()
    expected = logits_of(model, tokens())
    network = carry_over(aero.with_entropy_penalty(model))
    assert relative_difference(logits_of(network, tokens()), expected) < 1e-5


def test_carrying_over_leaves_the_random_numbers_alone():
    model = gpt2()
    state = torch.get_rng_state()
    carry_over(model)
    assert torch.equal(torch.get_rng_state(), state)


def _with(model, change):
    change(model)
    return model


def _small(config):
    return config(vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)


def _grouped_heads(model):
    model.transformer.h[1].attn.c_attn = torch.nn.Linear(24, 40)


def _adapter(model):
    model.transformer.h[0].attn.c_attn.lora = torch.nn.Linear(24, 2)


class PostNorm(NanoGPT):
    """GPT-2's names around another forward."""

    def forward(self, ids, targets=None):
        logits, loss = super().forward(ids, targets)
        return torch.sin(logits), loss


REFUSED = {
    "is of no kind that can be converted; use a GPT2LMHeadModel": lambda: LlamaForCausalLM(
        LlamaConfig(**_small(dict), intermediate_size=8)
    ),
    "BertForMaskedLM is an encoder; use a decoder": lambda: BertForMaskedLM(
        BertConfig(**_small(dict), intermediate_size=8)
    ),
    "BertModel is an encoder": lambda: BertModel(BertConfig(**_small(dict), intermediate_size=8)),
    "T5ForConditionalGeneration is an encoder": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ),
    "GPT2Model has no head; load it as GPT2LMHeadModel": lambda: GPT2Model(
        GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)
    ),
    "has cross-attention; convert a decoder": lambda: gpt2(add_cross_attention=True),
    r"has quantized weights .*float8_e4m3fn\).*without quantization": lambda: gpt2().to(
        torch.float8_e4m3fn
    ),
    "has no values for transformer.wte.weight; load its weights": lambda: gpt2().to("meta"),
    "an activation that is neither GELU, ReLU nor": lambda: gpt2(activation_function="silu"),
    "says tie_word_embeddings=True but its head is a matrix of its own; call": lambda: _with(
        gpt2(),
        lambda m: setattr(m.lm_head, "weight", torch.nn.Parameter(m.lm_head.weight.clone())),
    ),
    "must be .72, 24. or its transpose": lambda: _with(nano_gpt(), _grouped_heads),
    "no place for: transformer.h.0.attn.c_attn.lora.weight.*merge_and_unload": lambda: _with(
        gpt2(), _adapter
    ),
    "has 5 heads, which do not divide its width 24": lambda: _with(
        nano_gpt(), lambda m: setattr(m.transformer.h[0].attn, "n_head", 5)
    ),
    "normalizes with RMSNorm, which is no LayerNorm": lambda: _with(
        nano_gpt(), lambda m: setattr(m.transformer.h[1], "ln_1", torch.nn.RMSNorm(24))
    ),
    "layers of different kinds": lambda: _with(
        nano_gpt(), lambda m: setattr(m.transformer.h[1].mlp, "function", F.relu)
    ),
    "has a head with a bias; set the bias to zero": lambda: _with(
        nano_gpt(),
        lambda m: setattr(m.lm_head, "bias", torch.nn.Parameter(torch.ones(VOCABULARY))),
    ),
    rf"has a head of shape .{VOCABULARY + 1}, 24. for token.*; resize both": lambda: _with(
        nano_gpt(),
        lambda m: setattr(m, "lm_head", torch.nn.Linear(24, VOCABULARY + 1, bias=False)),
    ),
    "has GPT-2's names but computes something else": PostNorm,
    "has no h.2.mlp.c_fc; give its blocks GPT-2's names": lambda: _with(
        nano_gpt(), lambda m: delattr(m.transformer.h[2].mlp, "c_fc")
    ),
    "rotary positions of type 'linear'; use the default": lambda: pythia(
        rope_parameters={
            "rope_theta": 1e4, "partial_rotary_factor": 0.25, "rope_type": "linear", "factor": 2.0,
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_other_networks_are_refused_with_what_to_do_instead(message):
    with pytest.raises(ValueError, match=f"^convert: .*{message}"):
        carry_over(REFUSED[message]())


@pytest.mark.parametrize("kind", ["gpt2", "gpt2, untied", "gpt2, exact GELU", "pythia"])
def test_checkpoints_load_as_aero_networks(kind, tmp_path):
    model = EVERY_KIND[kind]()
    model.save_pretrained(tmp_path)
    network = AeroForCausalLM.from_pretrained(tmp_path)
    assert isinstance(network, AeroForCausalLM) and not network.training
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5
    halved, information = AeroForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, attn_implementation="aero_entropy", output_loading_info=True
    )
    assert halved.dtype == torch.bfloat16 and not information["missing_keys"]
    assert halved.config._attn_implementation == "aero_entropy"
    network.save_pretrained(tmp_path / "aero")
    again = AeroForCausalLM.from_pretrained(tmp_path / "aero")
    assert torch.equal(logits_of(again, tokens()), logits_of(network, tokens()))


def test_dropout_of_a_checkpoint_is_that_of_its_training_and_stays_there(tmp_path):
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9)).save_pretrained(
        tmp_path
    )
    assert AeroForCausalLM.from_pretrained(tmp_path).config.spec.label == "SM+LN+G"


def test_other_checkpoints_are_refused_as_by_transformers(tmp_path):
    BertForMaskedLM(BertConfig(**_small(dict), intermediate_size=8)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="AeroConfig: unknown key"):
        AeroForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(OSError, match="no-such-folder"):
        AeroForCausalLM.from_pretrained(tmp_path / "no-such-folder")


class Windowed(NanoGPT):
    """GPT-2's names around attention that sees the last few keys."""

    def __init__(self, window):
        super().__init__(num_layers=1)
        self.window = window
        for block in self.transformer.h:
            block.attn.forward = lambda x, own=block.attn: self._attend(own, x)

    def _attend(self, own, x):
        parts = own.c_attn(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (own.n_head, -1)).transpose(1, 2) for part in parts)
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        visible = visible.triu(1 - self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return own.c_proj(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("window", [8, 9, 12, 19])
def test_windows_of_any_width_are_refused(window):
    model = with_trained_weights(Windowed(window))
    with pytest.raises(ValueError, match="computes something else than GPT-2"):
        carry_over(model)
    assert carry_over(with_trained_weights(Windowed(CONTEXT))).config.spec.label == "SM+LN+G"


def _without_norms(model, names):
    for name in names:
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, torch.nn.Identity())
    return model


@pytest.mark.parametrize("make", [gpt2, pythia, nano_gpt])
@pytest.mark.parametrize("final", [True, False])
def test_a_network_whose_norms_are_identities_has_none(make, final):
    tree = "gpt_neox" if make is pythia else "transformer"
    layers, first, second, last = (
        ("layers", "input_layernorm", "post_attention_layernorm", "final_layer_norm")
        if make is pythia
        else ("h", "ln_1", "ln_2", "ln_f")
    )
    names = [f"{tree}.{layers}.{i}.{norm}" for i in range(3) for norm in (first, second)]
    names += [f"{tree}.{last}"] if final else []
    model = _without_norms(make(), names)
    network = carry_over(model)
    assert network.config.spec.norm == "none"
    assert network.config.spec.final_norm == ("none" if final else "layer")
    assert relative_difference(logits_of(network, tokens()), logits_of(model, tokens())) < 1e-5


def diverged(model):
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[2, 3] = float("nan")
    return model


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: _without_norms(gpt2(), ["transformer.h.1.ln_2"]), "none at transformer.h.1.ln_2"),
        (lambda: diverged(gpt2()), "not finite in transformer.h.1.mlp.c_fc.weight"),
        (
            lambda: diverged(aero_network("SM+LN+G")),
            "not finite in transformer.h.1.mlp.c_fc.weight",
        ),
    ],
)
def test_what_makes_a_network_unfit_is_named(make, named):
    assert_refused(lambda: aero.convert(make(), "SM+LN+G"), named)
