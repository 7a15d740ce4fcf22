"""Attention maps are the weights whose entropies the network reports, beside fused attention."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertModel, Gemma2Config, GptOssConfig

import aero
from aero import AeroConfig, AeroForCausalLM

from .stock_models import CONFIGS, stock_model

_SIZES = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
PADDED = {
    "input_ids": torch.tensor([[0, 0, 5, 3, 8, 1, 9], [2, 7, 7, 4, 6, 11, 3]]),
    "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7]),
    "position_ids": torch.tensor([[0, 0, 0, 1, 2, 3, 4], list(range(7))]),
}


def built(kind: Any, config: Any) -> list[Any]:
    """The same random model with eager attention and with ours."""
    models = []
    for name in ("eager", "aero"):
        torch.manual_seed(0)
        models.append(kind(copy.deepcopy(config), attn_implementation=name).eval())
    return models


def check_against_eager(eager: Any, ours: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Maps are eager's weights, shares among the keys, in rows that are not padding."""
    found = aero.entropies(ours, batch, attention_maps=True)
    assert found.attention_maps is not None
    rows = found.row_mask[:, None, :, None]
    with torch.no_grad():
        theirs = eager(**batch, output_attentions=True, use_cache=False).attentions
    for maps, weights in zip(found.attention_maps, theirs, strict=True):
        shares = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(maps.nan_to_num(), shares.where(rows, 0.0), atol=1e-5, rtol=1e-4)
        assert bool((maps.isnan() == ~rows).all())
    return tuple(theirs)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_maps_of_a_stock_decoder_are_eagers_weights(name: str) -> None:
    check_against_eager(stock_model(name, "eager"), stock_model(name, "aero"), PADDED)


def test_the_maps_of_an_encoder_are_eagers_weights() -> None:
    settings = {**_SIZES, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 64}
    eager, ours = built(BertModel._from_config, BertConfig(**settings))
    check_against_eager(eager, ours, PADDED)


def test_caps_and_windows_are_in_the_maps() -> None:
    config = Gemma2Config(
        **_GROUPED, query_pre_attn_scalar=8, attn_logit_softcapping=0.5, bos_token_id=0
    )
    eager, ours = built(AutoModelForCausalLM.from_config, config)
    check_against_eager(eager, ours, {"input_ids": PADDED["input_ids"] + 1})


def test_what_a_sink_takes_is_no_part_of_a_row() -> None:
    config = GptOssConfig(**_GROUPED, num_local_experts=2, num_experts_per_tok=1, bos_token_id=0)
    eager, ours = built(AutoModelForCausalLM.from_config, config)
    theirs = check_against_eager(eager, ours, {"input_ids": PADDED["input_ids"] + 1})
    assert max(float(weights.sum(-1).min()) for weights in theirs) < 0.99, "the sinks take a part"


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "mistral-window"])
def test_packed_sequences_have_maps_of_their_own(name: str, rows: int) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1]])
    ids = torch.tensor([[5, 3, 8, 1, 9, 2, 7, 4], [2, 7, 7, 4, 6, 11, 3, 1]])
    batch = {"input_ids": ids[:rows], "position_ids": positions[:rows]}
    theirs = check_against_eager(stock_model(name, "eager"), stock_model(name, "aero"), batch)
    assert all((weights[0, :, 3, 3] == 1).all() for weights in theirs), "eager packs them too"


def test_packed_rows_of_own_networks_have_the_temperatures_of_their_positions() -> None:
    torch.manual_seed(0)
    model = AeroForCausalLM(AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model="tiny")).eval()
    for name, parameter in model.named_parameters():
        if "temperature" in name:
            torch.nn.init.uniform_(parameter, 0.02, 0.1)
    ids = torch.tensor([[5, 3, 8, 1, 9, 2, 7, 4], [2, 7, 7, 4, 6, 11, 3, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], list(range(8))])
    batch = {"input_ids": ids, "position_ids": positions}
    found = aero.entropies(model, batch, attention_maps=True).attention_maps or ()
    parts = [
        aero.entropies(model, part, attention_maps=True).attention_maps or ()
        for part in (ids[:1, :3], ids[:1, 3:], ids[1:])
    ]
    assert len(found) == len(parts[0]) > 0
    for maps, first, second, whole in zip(found, *parts, strict=True):
        wanted = torch.zeros(2, *maps.shape[1:])
        wanted[:1, :, :3, :3], wanted[:1, :, 3:, 3:], wanted[1:] = first, second, whole
        torch.testing.assert_close(maps, wanted, atol=1e-6, rtol=1e-5)


def test_the_maps_of_a_model_in_bfloat16_are_not_rounded_to_it() -> None:
    model = stock_model("llama-grouped", "aero", torch.bfloat16)
    found = aero.entropies(model, PADDED["input_ids"], attention_maps=True)
    assert found.attention_maps is not None
    for maps, entropies in zip(found.attention_maps, found.layers, strict=True):
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-6, rtol=0)
        exact = torch.special.entr(maps).sum(-1)
        torch.testing.assert_close(exact, entropies, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+ScFuFFN)"])
def test_the_rows_of_a_map_have_the_entropies_of_the_network(label: str) -> None:
    torch.manual_seed(0)
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny")).eval()
    for name, parameter in model.named_parameters():
        if "temperature" in name:
            torch.nn.init.uniform_(parameter, 0.02, 0.1)
    tokens = torch.tensor([[5, 3, 8, 1, 9], [2, 7, 7, 4, 6]])
    found = aero.entropies(model, tokens, attention_maps=True)
    assert found.attention_maps is not None
    maps = torch.stack(found.attention_maps).double()
    assert maps.triu(1).abs().max() == 0
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]).double())
    entropies = torch.special.entr(maps).sum(-1)
    given = torch.stack(list(found.layers)).double()
    torch.testing.assert_close(entropies, given, atol=1e-5, rtol=1e-5)


def test_there_are_no_maps_unless_asked_for() -> None:
    model = AeroForCausalLM(AeroConfig.from_label("SM", model="tiny")).eval()
    assert aero.entropies(model, torch.tensor([[5, 3, 8]])).attention_maps is None
