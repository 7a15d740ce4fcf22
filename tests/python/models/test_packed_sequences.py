"""Sequences one behind the other in a row see only themselves, or it is an error."""

import pytest
import torch

import aero
from aero.models import AeroConfig, AeroForCausalLM

from .stock_models import CONFIGS, stock_model

FIRST, SECOND = 5, 6
TOKENS = torch.randint(1, 16, (1, FIRST + SECOND), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.cat([torch.arange(FIRST), torch.arange(SECOND)]).unsqueeze(0)
PARTS = (TOKENS[:, :FIRST], TOKENS[:, FIRST:])
# No label crosses from one sequence into the next.
LABELS = TOKENS.masked_fill(POSITIONS == 0, -100)


def own(label="EReg(SM(t)+ScFuFFN)", **fields):
    torch.manual_seed(0)
    fields = {"entropy_tokens": 9, "tolerance_margin": 0.0, "temperature_init": 0.5, **fields}
    return AeroForCausalLM(AeroConfig.from_label(label, model="tiny", **fields)).double()


def penalty_of(rows, thresholds, largest):
    """Sum over rows of squared deviations from the thresholds, the mean over heads and layers."""
    squares = [
        (row - share[:, None] * maximum).square().sum(dim=-1)
        for row, share, maximum in zip(rows, thresholds, largest, strict=True)
    ]
    return torch.stack(squares).mean()


@pytest.mark.parametrize("name", CONFIGS)
def test_stock_models_keep_them_apart_without_a_cache(name):
    model = stock_model(name, "aero_entropy", torch.float64)
    arguments = {"output_attentions": True, "use_cache": False}
    with torch.no_grad():
        joined = model(TOKENS, position_ids=POSITIONS, **arguments)
        alone = [model(part, **arguments) for part in PARTS]
    torch.testing.assert_close(joined.logits, torch.cat([a.logits for a in alone], dim=1))
    for index, layer in enumerate(joined.attentions):
        expected = torch.cat([a.attentions[index] for a in alone], dim=2)
        torch.testing.assert_close(layer, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_stock_models_that_would_mix_them_are_refused(name):
    model = stock_model(name, "aero")
    for arguments in ({"use_cache": True}, {"attention_mask": torch.ones_like(TOKENS)}):
        with pytest.raises(ValueError, match=r"Attention got position_ids that start again.*use_"):
            model(TOKENS, position_ids=POSITIONS, **arguments)
        # The same positions, once allowed, are looked at again.
        model(TOKENS, position_ids=POSITIONS, use_cache=False)
    changed = torch.arange(FIRST + SECOND).unsqueeze(0)
    model(TOKENS, position_ids=changed)
    changed.copy_(POSITIONS)
    with pytest.raises(ValueError, match="start again"):
        model(TOKENS, position_ids=changed)


def test_padding_whose_positions_start_anew_is_no_other_sequence():
    model = stock_model("mistral-window", "aero")
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, :4] = mask[1, -4:] = 0
    for filler in (0, 1):
        positions = (mask.cumsum(dim=-1) - 1).masked_fill(mask == 0, filler)
        model(TOKENS.expand(2, -1), attention_mask=mask, position_ids=positions)


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "mistral-window"])
def test_the_penalty_and_the_entropies_are_those_of_each_alone(name):
    settings = {"tokens": 9, "threshold": 0.1, "margin": 0.01, "context_length": 11}
    model = aero.with_entropy_penalty(stock_model(name, "sdpa", torch.float64), **settings)
    alone = [aero.entropies(model, part) for part in PARTS]
    found = aero.entropies(model, {"input_ids": TOKENS, "position_ids": POSITIONS})
    keys = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]
    if name == "mistral-window":
        keys = [min(number, 4) for number in keys]
    assert found.visible_keys.tolist() == [[keys]] * 2
    for index, layer in enumerate(found.layers):
        expected = torch.cat([each.layers[index] for each in alone], dim=2)
        torch.testing.assert_close(layer, expected, atol=1e-6, rtol=0)
    model.train()
    joined = model(TOKENS, position_ids=POSITIONS, labels=LABELS)
    # 4 and 5 predicted tokens, where the packed call has 9.
    shares = [
        n / 9 * model(part, labels=part).entropy_loss for n, part in zip((4, 5), PARTS, strict=True)
    ]
    torch.testing.assert_close(joined.entropy_loss, sum(shares), atol=0, rtol=1e-6)


def test_log_visible_counts_the_keys_of_each_sequence():
    model = aero.with_entropy_penalty(
        stock_model("gpt2", "sdpa"), tokens=9, threshold=0.1, margin=0.0, max_entropy="log_visible"
    ).train()
    output = model(TOKENS, position_ids=POSITIONS, labels=LABELS)
    rows = [layer[0].detach() for layer in output.attentions]
    largest = (POSITIONS[0] + 1.0).log()
    expected = penalty_of(rows, torch.full((2, 4), 0.1), [largest, largest])
    torch.testing.assert_close(output.entropy_loss, expected)


@pytest.mark.parametrize(
    "label", ["EReg(SM(t)+ScFuFFN)", "SM+LN+G", "SM+ScFuFFN+C4", "SM+LN+R+D3", "SM+LN+G+S8"]
)
def test_own_networks_keep_them_apart(label):
    model = own(label)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "convolution" in name:
                parameter += 0.5
        for is_training in (False, True):
            model.train(is_training)
            joined = model(TOKENS, position_ids=POSITIONS).logits
            alone = [model(part).logits for part in PARTS]
            torch.testing.assert_close(joined, torch.cat(alone, dim=1))
    for arguments in ({"use_cache": True}, {"attention_mask": torch.ones_like(TOKENS)}):
        with pytest.raises(ValueError, match="AeroModel got position_ids that start again"):
            model(TOKENS, position_ids=POSITIONS, **arguments)


@pytest.mark.parametrize("max_entropy", ["log_context", "log_visible"])
def test_own_penalties_count_the_keys_of_each_sequence(max_entropy):
    model = own(max_entropy=max_entropy).train()
    output = model(TOKENS, position_ids=POSITIONS, labels=LABELS)
    rows = [layer[0].detach() for layer in output.entropies]
    keys = POSITIONS[0] + 1.0 if max_entropy == "log_visible" else torch.full((11,), 32.0)
    expected = penalty_of(rows, torch.full((2, 2), 0.5), [keys.log()] * 2)
    torch.testing.assert_close(output.entropy_loss, expected, atol=0, rtol=1e-6)
