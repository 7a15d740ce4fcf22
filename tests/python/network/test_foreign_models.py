"""Models of `transformers` that no label names: every reader against the model itself."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.python.refusals import assert_refused
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from aero import AeroConfig, AeroForCausalLM, _core, mpc
from aero.families.values import EXPORTED
from aero.fixed_point import Approximations, functions
from aero.models import foreign_writer
from aero.models.foreign_writer import describe_model
from aero.mpc.simulation import optimized_stack_names
from aero.network import numpy_reader, ring_reader
from aero.network.checks import check_description
from aero.network.description import Operation
from aero.network.numpy_reader import forward
from aero.network.ring_reader import RingNetwork

SIZES = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 40, "max_position_embeddings": 32,
}  # fmt: skip
STABLE = {
    **SIZES, "num_attention_heads": 3, "num_key_value_heads": 3, "use_qkv_bias": True,
    "hidden_size": 48,
}  # fmt: skip
GPT2 = {"vocab_size": 61, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 32}
OURS = {"model": "tiny", "num_layers": 3, "vocab_size": 61, "context_length": 32}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2)),
    "gpt2, exact, untied": (
        GPT2LMHeadModel,
        GPT2Config(**GPT2, activation_function="gelu", n_inner=40, tie_word_embeddings=False,
                   layer_norm_epsilon=1e-3, scale_attn_weights=False),
    ),
    "gpt_neox": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(**{**SIZES, "num_attention_heads": 3}, rotary_pct=0.25),
    ),
    "gpt_neox, serial": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(**{**SIZES, "num_attention_heads": 3}, use_parallel_residual=False,
                      hidden_act="relu", attention_bias=False),
    ),
    **{
        label: (AeroForCausalLM, AeroConfig.from_label(label, leaky_slope_init=2.0, **OURS))
        for label in (
            "SM+LN+G", "EReg(SM(t)+ScFuFFN_i1)", "SM+LR(layer)", "SOTA:SM+ScFuFFN", "SM+FN+R+C4",
        )
    },
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, num_key_value_heads=2)),
    "llama, tied, biased": (
        LlamaForCausalLM,
        LlamaConfig(**SIZES, num_key_value_heads=6, head_dim=8, attention_bias=True,
                    mlp_bias=True, tie_word_embeddings=True, rope_theta=500.0),
    ),
    "mistral": (
        MistralForCausalLM, MistralConfig(**SIZES, num_key_value_heads=3, sliding_window=5)
    ),
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config(**SIZES, num_key_value_heads=1, use_sliding_window=True, sliding_window=4,
                    max_window_layers=1),
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, use_sliding_window=True,
                    sliding_window=4, max_window_layers=2),
    ),
    "qwen3, all keys": (
        Qwen3ForCausalLM, Qwen3Config(**SIZES, num_key_value_heads=3, head_dim=4)
    ),
    "gemma": (
        GemmaForCausalLM,
        GemmaConfig(**{**SIZES, "num_attention_heads": 4}, num_key_value_heads=1, head_dim=8),
    ),
    "phi": (PhiForCausalLM, PhiConfig(**SIZES)),
    "stablelm": (StableLmForCausalLM, StableLmConfig(**STABLE)),
    "starcoder2": (
        Starcoder2ForCausalLM, Starcoder2Config(**SIZES, num_key_value_heads=2, sliding_window=5)
    ),
    "bert": (BertForMaskedLM, BertConfig(**SIZES)),
    "bloom": (
        BloomForCausalLM,
        BloomConfig(vocab_size=61, hidden_size=24, n_layer=3, n_head=6, seq_length=32),
    ),
}  # fmt: skip


def made(name):
    """A model in float64 with no parameter at its start, and its description."""
    model_class, config = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model, describe_model(model)


def tokens():
    return torch.randint(61, (2, 19), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_numpy_computes_the_models_logits(name):
    model, network = made(name)
    check_description(network.description, "network.json")
    with torch.no_grad():
        expected = model(tokens()).logits.numpy()
    found = forward(network, tokens().numpy())
    # transformers computes the angles of rotary positions, and ALiBi's slopes, in float32.
    tolerance = 1e-12 if name == "bert" else 50 * 2.0**-24
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("name", ["llama", "llama, tied, biased", "qwen3, all keys"])
def test_fixed_point_follows_within_its_resolution(name):
    _, network = made(name)
    expected = forward(network, tokens().numpy())
    found = RingNetwork(network).logits(tokens().numpy())
    # Of 18 fraction bits; SPU's tanh, in SiLU, is right to 5e-3.
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_fixed_point_computes_a_tanh():
    _, network = made("llama")
    for layer in network.description["operations"]:
        for operation in layer.get("operations", ()):
            if operation["op"] == "activation":
                operation["function"] = "tanh"
    check_description(network.description, "network.json")
    expected = forward(network, tokens().numpy())
    found = RingNetwork(network).logits(tokens().numpy())
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("function", "first", "last"),
    [
        ("sigmoid", -8, 8),
        ("exp", -16, 0),
        ("reciprocal", 0.1, 40),
        ("rsqrt", 0.1, 40),
        ("relu_squared", -8, 8),
    ],
)
def test_fixed_point_computes_functions_of_elements(function, first, last):
    x = np.linspace(first, last, 999)
    one = Operation("activation", {"function": function, "width": 999, "slope": 0.0}, ("x",), "y")
    run = ring_reader.RingOperations(Approximations())
    found = ring_reader.OPERATIONS["activation"](run, one, {}, run.encode(x))
    expected = numpy_reader.OPERATIONS["activation"](one, {}, x)
    # exp is off by x^2 / 2^9 of itself, the logistic function by a quarter of that at most.
    assert np.abs(functions.decode(found) - expected).max() < 3e-3


def test_the_families_that_are_exported_are_those_with_weights():
    assert set(EXPORTED) == set(foreign_writer._FAMILIES)


def test_bert_does_not_see_padding():
    model, network = made("bert")
    lengths = np.array([19, 7])
    mask = torch.arange(19) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        expected = model(tokens(), attention_mask=mask.long()).logits[mask].numpy()
    found = forward(network, tokens().numpy(), lengths)[mask.numpy()]
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_a_configuration_alone_has_the_price_of_its_model(name):
    network = describe_model(MODELS[name][1])
    assert network.description == made_as_float32(name).description
    assert all(not array.any() for array in network.tensors.values())
    for stack in (*mpc.stack_names(), *optimized_stack_names()):
        priced = price(network, stack)
        assert priced["total"].comm_bytes > 0
        assert len(priced["by_layer"]) == 3


@pytest.mark.parametrize(
    "config", [GPT2Config(), GPTNeoXConfig(), AeroConfig.from_label("SM+ScFuFFN", model="gpt2")]
)
def test_a_configuration_of_any_size_makes_no_weights(config):
    network = describe_model(config)
    check_description(network.description, "network.json")
    assert sum(array.size for array in network.tensors.values()) > 5e7
    assert sum(array.base.nbytes for array in network.tensors.values()) < 1e4


def made_as_float32(name):
    model_class, config = MODELS[name]
    return describe_model(model_class(config).float())


def price(network, stack):
    described = network.description
    return _core.simulate(
        _core.Network(described["operations"], described["context_length"]), _core.Stack(stack)
    )


def test_the_price_of_a_llama_is_the_sum_of_its_parts():
    network = describe_model(MODELS["llama"][1])
    found = {one.name: one for one in price(network, "spu-0.9.5")["operations"] if one.layer == 1}
    expected = {
        "norm before attention": ("rmsnorm", 32, 24),
        "queries, keys, values": ("weight_product", 32, 24, (6 + 2 * 2) * 4),
        # Three query heads are the rows of one product with their key head.
        "scores": ("head_product", 2, 3 * 32, 4, 32),
        "softmax": ("softmax", 6 * 32, 32),
        "heads": ("head_product", 2, 3 * 32, 32, 4),
        "activation": ("silu", 32 * 40),
        "FFN, gate": ("weight_product", 32, 24, 40),
        "FFN, out": ("weight_product", 32, 40, 24),
    }
    for name, (operation, *sizes) in expected.items():
        cost = mpc.operation_cost(operation, *sizes, stack="spu-0.9.5")
        assert found[name].cost.comm_bytes == pytest.approx(cost.comm_bytes, abs=1), name
    product = mpc.operation_cost("product", 32 * 40, stack="spu-0.9.5")
    truncated = mpc.operation_cost("truncation", 32 * 40, stack="spu-0.9.5")
    both = product.comm_bytes + truncated.comm_bytes
    assert found["gate times up"].cost.comm_bytes == pytest.approx(both, abs=1)


def test_norms_of_heads_are_priced_row_by_row_of_each_head():
    network = describe_model(MODELS["qwen3"][1])
    found = {one.name: one for one in price(network, "spu-0.9.5")["operations"] if one.layer == 1}
    for name, heads in (("norm of queries", 6), ("norm of keys", 2)):
        cost = mpc.operation_cost("rmsnorm", 32 * heads, 8, stack="spu-0.9.5")
        assert found[name].cost.comm_bytes == pytest.approx(cost.comm_bytes, abs=1)
        assert found[name].kind == "layernorm"


@pytest.mark.parametrize(
    ("changes", "named"), [({"width": 7}, "width of heads"), ({"kind": "diagonal"}, "layer or rms")]
)
def test_norms_that_heads_cannot_have_are_refused(changes, named):
    description = made_as_float32("qwen3").description
    for layer in description["operations"]:
        for operation in layer.get("operations", ()):
            if operation["name"] == "norm of keys":
                operation.update(changes)
    assert_refused(lambda: check_description(description, "network.json"), named)


SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gemma2Config(**SIZES), "Gemma2"),
        (
            lambda: LlamaConfig(**SIZES, rope_parameters=SCALED),
            "rope_parameters of llama must be of the default type",
        ),
        (lambda: LlamaConfig(**SIZES, hidden_act="mish"), "hidden_act of llama must be one of"),
        (lambda: BertConfig(**SIZES, is_decoder=True), "is_decoder"),
        (lambda: BertLMHeadModel(BertConfig(**SIZES, is_decoder=True)), "is_decoder"),
        *(
            (
                lambda kind=kind: kind(kind.config_class(**SIZES, pad_token_id=0)),
                f"{kind.__name__} .*language-model head",
            )
            for kind in (BertForSequenceClassification, LlamaForSequenceClassification, LlamaModel)
        ),
        (lambda: GPT2Config(**GPT2, add_cross_attention=True), "cross-attention"),
        (
            lambda: GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
            "scale_attn_by_inverse_layer_idx",
        ),
        (
            lambda: GPTNeoXConfig(**{**SIZES, "num_attention_heads": 3}, rope_parameters=SCALED),
            "rotary positions of type 'linear'",
        ),
    ],
)
def test_what_has_no_description_is_named_with_a_way_out(make, message):
    with pytest.raises(ValueError, match=message):
        describe_model(make())


def test_adapters_must_be_merged_first():
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    adapted = get_peft_model(model, LoraConfig(target_modules=["v_proj"], init_lora_weights=False))
    for one in (adapted, model):  # the model has the adapters in it now
        with pytest.raises(ValueError, match="merge_and_unload"):
            describe_model(one)
    merged = adapted.merge_and_unload()
    with torch.no_grad():
        expected = merged(tokens()).logits.numpy()
    found = forward(describe_model(merged), tokens().numpy())
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
