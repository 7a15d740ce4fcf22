import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from aero.conversion import prune_ffn, select_prunable_ffns
from aero.conversion.prunable import PrunableFfns
from aero.models import AeroConfig, AeroForCausalLM

from .networks import aero_network, tokens

BATCHES = torch.randint(0, 256, (3, 2, 32), generator=torch.Generator().manual_seed(3))


def network(label, num_layers=4):
    torch.manual_seed(0)
    config = AeroConfig.from_label(label, model="tiny", num_layers=num_layers)
    model = AeroForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def loss_of(model):
    model.eval()
    with torch.no_grad():
        return sum(float(model(batch, labels=batch).lm_loss) for batch in BATCHES) / 3


@pytest.mark.parametrize("label", ["SM+LN+G", "SM+ScFuFFN", "SM+FN+R", "SM+ScFuFFN_i1"])
def test_scores_are_the_losses_of_pruned_networks(label):
    model = network(label).train()
    scores = select_prunable_ffns(model, BATCHES, max_loss_increase=100.0)
    assert model.training
    whole = loss_of(network(label))
    assert scores.loss == pytest.approx(whole, rel=1e-6)
    present = range(3 if label.endswith("_i1") else 4)
    assert list(scores.increases) == list(present)
    for layer in present:
        pruned = loss_of(prune_ffn(network(label), layers=[layer]))
        assert scores.increases[layer] == pytest.approx(pruned - whole, rel=1e-3, abs=1e-5)
    gone = 4 - len(present)
    for count, increase in enumerate(scores.deepest_increases, start=1):
        pruned = loss_of(prune_ffn(network(label), deepest=gone + count))
        assert increase == pytest.approx(pruned - whole, rel=1e-3, abs=1e-5)
    assert scores.deepest == len(present) and len(scores.deepest_increases) == len(present)


def test_the_search_stops_at_the_first_step_beyond_the_bound():
    model = network("SM+LN+G")
    losses = iter([1.0, 1.5, 1.1, 1.01, 1.0, 1.0, 1.015, 1.3])
    scores = select_prunable_ffns(model, lambda found: next(losses), max_loss_increase=0.02)
    assert scores.deepest == 2 and scores.layers == (3, 2)
    assert scores.deepest_increases == pytest.approx((0.0, 0.015, 0.3))
    assert "the 2 deepest can go" in scores.to_text()
    assert next(losses, None) is None


def test_the_text_has_a_line_for_every_layer_that_has_an_ffn():
    scores = PrunableFfns(2.5, {2: -0.125, 0: 1.5, 1: 0.25}, (0.0625, 0.75), 0.1)
    assert scores.to_text().splitlines() == [
        "layer  loss without its FFN  without all from here on",
        "    0               +1.5000              not measured",
        "    1               +0.2500                   +0.7500",
        "    2               -0.1250                   +0.0625",
        "loss 2.5000 with all FFNs; within 0.1 nats the 1 deepest can go",
    ]


def test_a_loss_that_is_not_a_number_is_beyond_every_bound():
    losses = iter([1.0, *[1.0] * 4, math.nan])
    scores = select_prunable_ffns(network("SM"), lambda found: next(losses), max_loss_increase=9)
    assert scores.deepest == 0


def test_labels_left_out_do_not_count():
    model, ids = network("SM+R"), BATCHES[0]
    labels = ids.clone()
    labels[:, 5:] = -100
    short = {"input_ids": ids, "labels": labels}
    found = select_prunable_ffns(model, [short, {"input_ids": BATCHES[1]}]).loss
    model.eval()
    with torch.no_grad():
        losses = [model(ids, labels=labels).lm_loss, model(BATCHES[1], labels=BATCHES[1]).lm_loss]
    assert found == pytest.approx(float((8 * losses[0] + 62 * losses[1]) / 70), rel=1e-6)


def test_a_gpt2_is_scored_without_being_changed():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_layer=2,
        n_embd=32,
        n_head=2,
        n_positions=32,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scores = select_prunable_ffns(model, BATCHES)
    assert list(scores.increases) == [0, 1]
    with torch.no_grad():
        whole = sum(float(model(batch, labels=batch).loss) for batch in BATCHES) / 3
    assert scores.loss == pytest.approx(whole, rel=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_batch_without_a_predicted_token_is_in_no_mean():
    nothing = {"input_ids": BATCHES[0], "labels": BATCHES[0] * 0 - 100}
    expected = select_prunable_ffns(network("SM"), BATCHES)
    found = select_prunable_ffns(network("SM"), [nothing, *BATCHES])
    assert found == expected and math.isfinite(found.loss)


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="max_loss_increase must be >= 0, got -1"):
        select_prunable_ffns(network("SM"), BATCHES, max_loss_increase=-1)
    with pytest.raises(ValueError, match="at least one batch"):
        select_prunable_ffns(network("SM"), [])
    for nothing in (
        torch.ones(3, 1).long(),
        {"input_ids": BATCHES[0], "labels": BATCHES[0] * 0 - 100},
    ):
        with pytest.raises(ValueError, match="must hold a predicted token, got none"):
            select_prunable_ffns(network("SM"), [nothing])
    with pytest.raises(ValueError, match="SM_i4 has no FFN left"):
        select_prunable_ffns(network("SM_i4"), BATCHES)


def test_a_loss_may_grow_by_the_bound_and_no_more():
    def scores(*, grown, **bound):
        losses = iter([0.0, grown, 2.0, grown, 2.0])
        model = aero_network("SM")
        return select_prunable_ffns(model, lambda network: next(losses), **bound)

    assert scores(grown=0.02).max_loss_increase == 0.02
    assert (scores(grown=0.02).deepest, scores(grown=0.02).layers) == (1, (0,))
    assert (scores(grown=0.0201).deepest, scores(grown=0.0201).layers) == (0, ())
    assert (scores(grown=0.0, max_loss_increase=0).deepest) == 1
    with pytest.raises(ValueError, match="max_loss_increase must be >= 0, got nan"):
        scores(grown=0.0, max_loss_increase=math.nan)


@pytest.mark.parametrize("label", ["SM+LN+G", "SOTA:SM+FN+R"])
def test_scoring_gives_back_every_part_even_where_the_measure_fails(label):
    model = aero_network(label).train()
    before, ids = dict(model.state_dict()), tokens()
    select_prunable_ffns(model, [ids])

    def failing(network):
        if any(block.mlp is None for block in network.transformer.h):
            raise RuntimeError("out of tokens")
        return 1.0

    with pytest.raises(RuntimeError, match="out of tokens"):
        select_prunable_ffns(model, failing)
    assert model.training and model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
