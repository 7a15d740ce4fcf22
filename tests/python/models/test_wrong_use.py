"""A call that `attn_implementation="aero"` cannot compute is an error that names another way."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tests.python.refusals import assert_refused
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BloomConfig,
    CodeGenConfig,
    FalconConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoConfig,
    MptConfig,
)

import aero
from aero.models.hugging_face_attention import aero_attention_forward
from aero.models.outputs import CACHE_FIELD

from .labels import tiny
from .stock_models import stock_model

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])
_SIZES = {
    "vocab_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "pad_token_id": 0,
}


def run(config, kind=AutoModelForCausalLM, **arguments):
    config._attn_implementation = "aero_entropy"
    return kind.from_config(config).eval()(TOKENS, **arguments)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=16, hidden_size=32, n_layer=1, n_head=4),
        FalconConfig(vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        GPTNeoConfig(
            vocab_size=16,
            hidden_size=32,
            num_layers=1,
            num_heads=4,
            attention_types=[[["global"], 1]],
        ),
        MptConfig(vocab_size=16, d_model=32, n_layers=1, n_heads=4),
        # transformers 5.24 computes the attention of these two through its interface.
        *[
            kind(vocab_size=16, n_embd=32, n_layer=1, n_head=4, rotary_dim=4)
            for kind in (CodeGenConfig, GPTJConfig)
            if CACHE_FIELD == "past_key_values"
        ],
    ],
    ids=lambda config: config.model_type,
)
def test_models_with_attention_of_their_own_are_refused(config):
    # Without the check BLOOM and CodeGen add the boolean mask to their scores, without a word, and
    # GPT-J, GPT-Neo and Falcon end in a KeyError.
    with pytest.raises(ValueError, match=r"code of its own.* keep attn_implementation='eager', or"):
        run(config)


def test_float8_is_refused():
    q = torch.zeros(1, 2, 4, 8).to(torch.float8_e4m3fn)
    message = r"cannot compute in torch\.float8_e4m3fn.* such as model\.to\(torch\.bfloat16\)"
    with pytest.raises(ValueError, match=f"aero attention: Module {message}"):
        aero_attention_forward(torch.nn.Module(), q, q, q, None)
    own, stock = tiny("SM+ScFuFFN"), stock_model("gpt2", "aero")
    with pytest.raises(ValueError, match=f"AeroModel {message}"):
        own.to(torch.float8_e4m3fn)(TOKENS)
    stock.to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=f"entropies: GPT2LMHeadModel {message}"):
        aero.entropies(stock, TOKENS)
    with pytest.raises(ValueError, match=f"with_entropy_penalty: GPT2LMHeadModel {message}"):
        aero.with_entropy_penalty(stock)


def attend(mask=None, rows=1, **arguments):
    q = torch.randn(1, 2, 4, 8).expand(rows, -1, -1, -1)
    starts = {name: torch.tensor(arguments.pop(name)) for name in list(arguments) if "seq" in name}
    return aero_attention_forward(torch.nn.Module(), q, q, q, mask, **starts, **arguments)


def masked(mask):
    return stock_model("gpt2", "aero")(TOKENS, attention_mask=mask)


def own(ids):
    config = aero.AeroConfig.from_label("SM", model="tiny", vocab_size=11)
    return aero.AeroForCausalLM(config)(ids)


def penalized_encoder():
    config = BertConfig(**_SIZES, attention_probs_dropout_prob=0.0)
    return aero.with_entropy_penalty(AutoModelForMaskedLM.from_config(config))


@pytest.mark.parametrize(
    ("call", "argument", "expected", "got"),
    [
        (lambda: attend(torch.ones(1, 1, 4, 4).int()), "attention_mask", "[B, S]", "torch.int32"),
        (lambda: masked(torch.zeros(1, 1, 5, 5).long()), "attention_mask", "[B, S]", "torch.int64"),
        (lambda: attend(head_mask=torch.ones(2)), "head_mask", "not supported", ""),
        *(
            (lambda at=at: attend(cu_seq_lens_q=at), "cu_seq_lens_q", "rise from 0 to the 4", "got")
            for at in ([0, 3, 2, 4], [0, 2, 5], [1, 2, 4])
        ),
        (
            lambda: attend(cu_seq_lens_q=[0, 2, 4], cu_seq_lens_k=[0, 3, 4]),
            "cu_seq_lens_q", "be cu_seq_lens_k", "",
        ),
        (lambda: attend(rows=2, cu_seq_lens_q=[0, 2, 8]), "cu_seq_lens_q", "in each row", ""),
        (
            lambda: attend(cu_seq_lens_q=[0, 2, 4], is_causal=False),
            "cu_seq_lens_q", "without a mask", "not causal",
        ),
        (penalized_encoder, "model", "a decoder", "BertForMaskedLM"),
        (lambda: own(torch.zeros(3).long()), "input_ids", "integers", "int64 [3]"),
        (lambda: own(torch.zeros(1, 3)), "input_ids", "integers", "float32 [1, 3]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_call_is_named(call, argument, expected, got):
    assert_refused(call, argument, expected, got)


def test_packed_sequences_that_fit_are_computed():
    attend(cu_seq_lens_q=[0, 4])


def test_a_window_without_a_mask_is_refused_where_it_would_matter():
    q, layer = torch.randn(1, 2, 4, 8), torch.nn.Module()
    with pytest.raises(ValueError, match="sliding window of 3 over 4 keys and no mask for it"):
        aero_attention_forward(layer, q, q, q, None, sliding_window=3)
    plain = aero_attention_forward(layer, q, q, q, None)[0]
    assert torch.equal(aero_attention_forward(layer, q, q, q, None, sliding_window=4)[0], plain)


def test_a_configuration_cannot_ask_for_attentions():
    # The refusal is that of `transformers`; a call can ask.
    with pytest.raises(StrictDataclassError, match="output_attentions"):
        GPT2Config(attn_implementation="aero_entropy", output_attentions=True)
    model = stock_model("gpt2", "aero_entropy")
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True
    assert len(model(TOKENS, output_attentions=True).attentions) == 2


@pytest.mark.parametrize("unknown", [11, 300, -1])
@pytest.mark.parametrize("tied", [True, False])
def test_ids_beyond_the_vocabulary_are_named_with_it(unknown, tied):
    model = aero.AeroForCausalLM(
        aero.AeroConfig.from_label("SM", model="tiny", vocab_size=11, tied_embeddings=tied)
    )
    ids = torch.tensor([[3, unknown, 10]])
    message = rf"^AeroModel: input_ids must be from 0 to 10, the vocabulary, got {unknown}$"
    labels = torch.zeros_like(ids)
    calls = (
        lambda: model(ids),
        lambda: model(ids, labels=labels),
        lambda: model.transformer(ids),
        lambda: model.generate(ids, max_new_tokens=1),
    )
    for call in calls:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert caught.value.__suppress_context__  # torch's own words are no help


def test_an_index_error_of_another_cause_stays_what_it_is():
    class Broken(torch.nn.Embedding):
        def forward(self, ids):
            raise IndexError("of another cause")

    model = aero.AeroForCausalLM(aero.AeroConfig.from_label("SM", model="tiny", vocab_size=11))
    model.transformer.wte = Broken(11, 32)
    with pytest.raises(IndexError, match="of another cause"):
        model(TOKENS)
