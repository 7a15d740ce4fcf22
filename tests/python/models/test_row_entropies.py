"""`aero.entropies` on stock and own models."""

import math
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from tests.python.refusals import assert_refused
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    XLNetConfig,
    XLNetLMHeadModel,
)

import aero
from aero.models.row_entropies import RowEntropies

from .labels import tiny
from .stock_models import CONFIGS, stock_model

TOKENS = torch.randint(1, 16, (2, 9), generator=torch.Generator().manual_seed(3))
LEFT = torch.tensor([[0] * 3 + [1] * 6, [1] * 9])


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "aero", "aero_entropy"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_implementation_gives_the_same_entropies_and_is_restored(name, implementation):
    model = stock_model(name, implementation).train()
    model.base_model.eval()
    found = aero.entropies(model, TOKENS)
    expected = stock_model(name, "eager")(TOKENS, output_attentions=True).attentions
    for layer, weights in zip(found.layers, expected, strict=True):
        weights = weights.double()
        wanted = -torch.xlogy(weights, weights).sum(dim=-1)
        torch.testing.assert_close(layer.double(), wanted, atol=1e-5, rtol=0)
        assert layer.dtype == torch.float32 and not layer.requires_grad
    assert model.config._attn_implementation == implementation
    assert model.training and not model.base_model.training


def test_padding_is_nan_and_in_no_statistic():
    model = stock_model("gpt2", "sdpa")
    found = aero.entropies(model, {"input_ids": TOKENS, "attention_mask": LEFT, "labels": TOKENS})
    alone = aero.entropies(model, TOKENS[:1, 3:])
    for layer, short in zip(found.layers, alone.layers, strict=True):
        assert layer[0, :, :3].isnan().all()
        assert not layer[1].isnan().any()
        # Positions are counted from the first token that is no padding.
        torch.testing.assert_close(layer[:1, :, 3:], short)
    assert torch.equal(found.row_mask, LEFT.bool())
    assert found.visible_keys[:, 0].tolist() == [[0, 0, 0, 1, 2, 3, 4, 5, 6]] * 2
    heads = [layer.nanmean(dim=2) for layer in found.layers]
    weights = torch.tensor([6 / 15, 9 / 15])
    expected = torch.stack([(weights[:, None] * head).sum(dim=0) for head in heads])
    np.testing.assert_allclose(found.summary().head_entropy, expected.numpy(), rtol=1e-5)


@pytest.mark.parametrize("label", ["SM+LN+G", "EReg(SM(t)+ScFuFFN)", "SOTA:SM+ScFFN"])
def test_own_models_give_what_their_outputs_hold(label):
    model = tiny(label).train()
    found = aero.entropies(model, TOKENS)
    with torch.no_grad():
        expected = model.eval()(TOKENS).entropies
    assert all(map(torch.equal, found.layers, expected))
    summary = found.summary(context_length=32)
    assert summary.max_entropy == math.log(32)
    assert (summary.temperatures is not None) == ("(t)" in label)
    assert (summary.thresholds is not None) == label.startswith("EReg")


@pytest.mark.parametrize(
    "wrap", [lambda model: torch.compile(model, backend="eager"), torch.nn.DataParallel]
)
def test_wrapped_models_are_looked_at_from_inside(wrap):
    model = stock_model("llama-grouped", "sdpa")
    expected = aero.entropies(model, TOKENS).layers
    assert all(map(torch.equal, aero.entropies(wrap(model), TOKENS).layers, expected))


def test_masks_per_query_say_what_rows_see():
    visible = torch.ones(9, 9, dtype=torch.bool).tril() & ~torch.ones(9, 9, dtype=torch.bool).tril(
        -3
    )
    batch = {"input_ids": TOKENS, "attention_mask": visible.expand(2, 1, 9, 9)}
    found = aero.entropies(stock_model("gpt2", "eager"), batch)
    assert found.visible_keys[:, 1].tolist() == [[1, 2, 3, 3, 3, 3, 3, 3, 3]] * 2
    assert all((layer <= math.log(3) * (1 + 1e-6)).all() for layer in found.layers)


@pytest.mark.parametrize("name", ["gpt2", "mistral-window"])
def test_entropies_print_a_line_per_layer_with_the_most_that_they_could_be(name):
    window = 4 if "window" in name else 9
    most = np.log(np.minimum(np.arange(1, 10), window)).mean()
    lines = str(aero.entropies(stock_model(name, "sdpa"), TOKENS)).splitlines()
    assert [line.split(" nats")[0].rsplit(" ", 1)[0] for line in lines] == [
        "layer 0: mean",
        "layer 1: mean",
    ]
    assert all(line.endswith(f" of at most {most:.3f}") for line in lines)


class Wrapper(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.network = model


def test_what_is_no_model_of_transformers_is_told_its_own_way_out():
    encoder = torch.nn.TransformerEncoderLayer(16, 2, 8)
    nanogpt = torch.nn.ModuleDict({"attn": torch.nn.ModuleDict({"c_attn": torch.nn.Linear(2, 6)})})
    stock, parallel = (stock_model("gpt2", "sdpa") for _ in range(2))
    for model, way_out, penalty_way_out in (
        (nanogpt, r"aero.convert\(model, 'SM\+LN\+G'\) makes", "'EReg.* makes one of nanoGPT"),
        (encoder, "call aero.ops.attention_entropy.*for encoders", "EntropyPenalty's term"),
        (Wrapper(stock), "give it the one inside, model.network", "model.network, and wrap that"),
        ("gpt2", "got str; call", "got str; call"),
        (torch.nn.DataParallel(parallel), None, "give it the one inside, model.module"),
        (torch.compile(parallel), None, "give it the one inside, model._orig_mod"),
    ):
        expected = "model must be a transformers model"
        if way_out is not None:
            with pytest.raises(ValueError, match=f"entropies: {expected}.*{way_out}"):
                aero.entropies(model, TOKENS)
        with pytest.raises(ValueError, match=f"penalty: {expected}.*{penalty_way_out}"):
            aero.with_entropy_penalty(model)


def beyond(token):
    ids = TOKENS.clone()
    ids[1, 3] = token
    return ids


BATCH = ("entropies", "batch", "token ids [B, T]")


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        (beyond(-1), ("input_ids", "from 0 to 15, the vocabulary", "got -1")),
        (beyond(16), ("input_ids", "from 0 to 15, the vocabulary", "got 16")),
        ({}, BATCH), ({"labels": TOKENS}, BATCH), (TOKENS[0], BATCH), (TOKENS[:, :0], BATCH),
        ([[1, 2]], BATCH), ("text", BATCH),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "make",
    [lambda: tiny("SM+LN+G", vocab_size=16), lambda: stock_model("llama-grouped", "sdpa")],
    ids=["own", "stock"],
)
def test_batches_that_are_none_are_named(make, batch, named):
    assert_refused(lambda: aero.entropies(make(), batch), *named)


def test_models_that_cannot_give_entropies_are_refused_and_left_as_they_were():
    sizes = {"vocab_size": 16, "num_hidden_layers": 1, "hidden_size": 16}
    xlnet = XLNetLMHeadModel(XLNetConfig(vocab_size=16, d_model=16, n_layer=1, n_head=2, d_inner=8))
    with pytest.raises(
        ValueError, match="entropies: XLNetLMHeadModel computes attention with code"
    ):
        aero.entropies(xlnet, TOKENS)
    mamba = MambaForCausalLM(MambaConfig(**sizes))
    with pytest.raises(ValueError, match="MambaForCausalLM returned no attention in every"):
        aero.entropies(mamba, TOKENS)
    assert mamba.training is True


def even_heads():
    """Two layers of three heads: row i of 3 looks at all, at none, and at two tokens alike."""
    rows = torch.tensor([1.0, 2.0, 3.0]).log()
    heads = torch.stack([rows, rows * 0, rows.clamp(max=math.log(2))])
    mask, keys = torch.ones(1, 3).bool(), torch.tensor([[[1, 2, 3]]] * 2)
    return RowEntropies((heads[None], heads.flip(0)[None]), mask, keys)


def test_scalars_name_every_layer_and_head():
    found = even_heads().to_scalars()
    all_alike, two = math.log(6) / 3, math.log(4) / 3
    assert found == pytest.approx(
        {
            "entropy/layer_0/head_0": all_alike,
            "entropy/layer_0/head_1": 0.0,
            "entropy/layer_0/head_2": two,
            "entropy/layer_0/mean": (all_alike + two) / 3,
            "entropy/layer_1/head_0": two,
            "entropy/layer_1/head_1": 0.0,
            "entropy/layer_1/head_2": all_alike,
            "entropy/layer_1/mean": (all_alike + two) / 3,
        }
    )
    assert {type(value) for value in found.values()} == {float}


def test_the_plot_shows_the_share_of_what_each_head_can_reach():
    figure, axes = plt.subplots()
    assert even_heads().plot(axes=axes) is axes
    # The first row sees one key and says nothing: of the others, 2 and 3 keys.
    two = (1 + math.log(2) / math.log(3)) / 2
    drawn = np.asarray(axes.collections[0].get_array()).reshape(2, 3)
    np.testing.assert_allclose(drawn, [[1, 0, two], [two, 0, 1]], rtol=1e-6)
    plt.close(figure)


def test_a_notebook_shows_a_cell_per_head():
    table = even_heads()._repr_html_()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    assert cells == ["0.60", "0.00", "0.46", "0.46", "0.00", "0.60"]
    shades = re.findall(r"<td[^>]*rgba\(246, 166, 35, ([0-9.]+)\)", table)
    assert [*map(float, shades)] == [1, 0, 0.82, 0.82, 0, 1]
    assert "<script" not in table


def test_broken_heads_are_shown_as_such():
    heads = torch.tensor([[[torch.nan, torch.nan], [0.0, 0.5]]])
    found = RowEntropies((heads,), torch.ones(1, 2).bool(), torch.tensor([[[1, 2]]]))
    assert re.findall(r"<td[^>]*>([^<]*)</td>", found._repr_html_()) == ["nan", "0.25"]
    scalars = found.to_scalars()
    assert math.isnan(scalars["entropy/layer_0/head_0"])
    assert scalars["entropy/layer_0/mean"] == 0.25
