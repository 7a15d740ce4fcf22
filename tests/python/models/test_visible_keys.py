"""How many keys a row sees is counted in the mask that its layer got."""

import threading

import numpy as np
import pytest
import torch
from transformers import StaticCache

import aero
from aero.models.outputs import CACHE_FIELD

from .labels import tiny
from .stock_models import stock_model
from .windowed_models import CONFIGS, windowed_model

T = 11
SETTINGS = {"weight": 0.5, "tokens": 9, "threshold": 0.3, "margin": 0.01}
TOKENS = torch.randint(1, 16, (2, T), generator=torch.Generator().manual_seed(1))


def padding(side):
    mask = torch.ones(2, T, dtype=torch.long)
    mask[1, slice(0, 4) if side == "left" else slice(-4, None)] = 0
    return mask


def counted(mask):
    return {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


PACKED = torch.cat([torch.arange(5), torch.arange(6)]).expand(2, -1)
PER_QUERY = torch.ones(T, T, dtype=torch.bool).tril() & ~torch.ones(T, T, dtype=torch.bool).tril(-3)
BATCHES = {
    "whole": {},
    "left-padded": counted(padding("left")),
    "right-padded": counted(padding("right")),
    "packed": {"position_ids": PACKED},
    "positions that jump": {"position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12]])},
    "a mask per query": {"attention_mask": PER_QUERY.expand(2, 1, T, T)},
}


def weights_of(model, **arguments):
    """Eager's weights, L tensors [B, H, T, S], with zeros in rows of padding."""
    mask = arguments.get("attention_mask")
    if mask is not None and mask.dim() == 4:  # eager adds what it gets
        least = torch.finfo(model.dtype).min
        additive = torch.zeros(mask.shape, dtype=model.dtype).masked_fill(~mask, least)
        arguments = {**arguments, "attention_mask": additive}
    arguments = {"input_ids": TOKENS, "use_cache": False, **arguments}
    layers = model(**arguments, output_attentions=True).attentions
    if mask is None or mask.dim() != 2:
        return layers
    return [layer * mask[:, None, -layer.shape[2] :, None].bool() for layer in layers]


def seen_by_eager(name, **arguments):
    with torch.no_grad():
        layers = weights_of(windowed_model(name, "eager", is_uniform=True), **arguments)
    return torch.stack([(weights[:, 0] > 0).sum(-1) for weights in layers])


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_keys_of_every_layer_are_those_of_eagers_weights(name, batch):
    arguments = BATCHES[batch]
    model = windowed_model(name, "sdpa", is_uniform=True)
    found = aero.entropies(model, {"input_ids": TOKENS, **arguments})
    expected = seen_by_eager(name, **arguments)
    assert torch.equal(found.visible_keys, expected)
    assert torch.equal(found.row_mask, (expected > 0).all(0))
    # Heads that look at all keys alike are as high as they can be.
    shares = found.summary().head_entropy_normalized_visible
    np.testing.assert_allclose(shares, 1, rtol=0, atol=1e-6)


def plain_entropies(weights):
    # Not xlogy, whose gradient at the masked zeros is not a number.
    weights = weights.double()
    return -(weights * weights.clamp(min=1e-300).log()).sum(-1)


def plain_penalty(entropies, keys, thresholds, reduction):
    """Mean over heads and layers, [L]; rows without keys do not count."""
    found = []
    for entropy, seen, share in zip(entropies, keys, thresholds, strict=True):
        largest = seen.clamp(min=1).double().log()[:, None]
        rows = (seen > 0)[:, None]
        if reduction == "query_mean":
            number = rows.sum(-1)
            entropy = torch.where(rows, entropy, 0).sum(-1, keepdim=True) / number[..., None]
            largest = torch.where(rows, largest, 0).sum(-1, keepdim=True) / number[..., None]
            rows = number[..., None] > 0
        deviation = entropy - share[:, None] * largest
        square = deviation.square() * (deviation.abs() > SETTINGS["margin"] * largest)
        by_sequence = torch.where(rows, square, 0).sum(-1)
        total = by_sequence.sum(0) if reduction == "position_sum" else by_sequence.mean(0)
        found.append(total)
    return torch.stack(found)


def plain_loss(name, batch, reduction):
    """Loss and penalty of eager's weights, and the gradients by path, thresholds' under ''."""
    # In float32: with a float64 mask eager's softmax makes NaN of rows that see nothing.
    eager = windowed_model(name, "eager")
    thresholds = torch.full((4, 4), SETTINGS["threshold"], dtype=torch.float64, requires_grad=True)
    entropies = [plain_entropies(layer) for layer in weights_of(eager, **BATCHES[batch])]
    keys = seen_by_eager(name, **BATCHES[batch])
    penalty = plain_penalty(entropies, keys, thresholds, reduction).mean()
    if reduction == "position_sum":
        penalty = penalty * SETTINGS["tokens"] / (labels_of(batch)[:, 1:] != -100).sum()
    loss = eager(TOKENS, labels=labels_of(batch), use_cache=False, **BATCHES[batch]).loss
    (loss + SETTINGS["weight"] * penalty).backward()
    found = {path: parameter.grad for path, parameter in eager.named_parameters()}
    return penalty, {**found, "": thresholds.grad}


def labels_of(batch):
    mask = BATCHES[batch].get("attention_mask", torch.ones_like(TOKENS))
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0), value=1)
    return TOKENS.masked_fill(mask * before == 0, -100)  # nothing is predicted from padding


@pytest.mark.parametrize("batch", ["whole", "left-padded", "right-padded", "packed"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_penalty_and_its_gradients_are_those_of_eagers_weights(name, batch):
    reduction = "query_mean" if batch == "right-padded" else "position_sum"
    model = aero.with_entropy_penalty(
        windowed_model(name, "sdpa"), **SETTINGS, reduction=reduction, max_entropy="log_visible"
    )
    model.train().gradient_checkpointing_enable()
    output = model(TOKENS, labels=labels_of(batch), use_cache=False, **BATCHES[batch])
    output.loss.backward()
    penalty, expected = plain_loss(name, batch, reduction)
    torch.testing.assert_close(output.entropy_loss.double(), penalty, rtol=1e-5, atol=0)
    got = {path: parameter.grad for path, parameter in model.named_parameters()}
    got[""] = got.pop("entropy_penalty.threshold_bias")
    assert got.keys() == expected.keys()
    for path, gradient in expected.items():
        if gradient is not None:
            scale = gradient.abs().max().item()
            assert (got[path] - gradient).abs().max() <= 1e-3 * scale, path


def test_layers_are_held_as_strongly_as_learned_whatever_they_see():
    model = windowed_model("gemma3", "sdpa")
    strengths = torch.arange(1.0, 17).view(4, 4)
    model = aero.with_entropy_penalty(
        model, **SETTINGS, strengths=strengths, max_entropy="log_visible"
    ).train()
    output = model(TOKENS, labels=TOKENS)
    entropies = [layer.detach().double() for layer in output.attentions]
    thresholds = torch.full((4, 4), SETTINGS["threshold"])
    penalties = plain_penalty(entropies, seen_by_eager("gemma3"), thresholds, "position_sum")
    held = strengths / strengths.mean()
    expected = (held * penalties).mean() - penalties.mean() * held.log().mean()
    torch.testing.assert_close(
        output.entropy_loss.double(), expected * SETTINGS["tokens"] / 20, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_after_a_static_cache_count_its_keys(name):
    keep = T - 4
    model = windowed_model(name, "sdpa")
    model = aero.with_entropy_penalty(model, **SETTINGS, max_entropy="log_visible")
    cache = StaticCache(config=model.config, max_cache_len=T + 2)
    with torch.no_grad():
        model(TOKENS[:, :keep], **{CACHE_FIELD: cache, "use_cache": True})
        rest = {"attention_mask": torch.ones_like(TOKENS), CACHE_FIELD: cache, "use_cache": True}
        output = model(TOKENS[:, keep:], labels=TOKENS[:, keep:], **rest)
        layers = weights_of(windowed_model(name, "eager"))
    entropies = [plain_entropies(layer)[:, :, keep:] for layer in layers]
    keys = seen_by_eager(name)[:, :, keep:]
    thresholds = torch.full((4, 4), SETTINGS["threshold"])
    expected = plain_penalty(entropies, keys, thresholds, "position_sum").mean()
    torch.testing.assert_close(
        output.entropy_loss.double(), expected * SETTINGS["tokens"] / 6, rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("numbers", ["twos", "packing numbers"])
@pytest.mark.parametrize("name", ["gpt2", "mistral-window", "own"])
def test_every_number_but_zero_is_a_token(name, numbers):
    """As `transformers` takes them, and as the logits are."""
    mask = 2 * padding("left") if numbers == "twos" else torch.arange(T).expand(2, -1) // 4 + 1
    batch = {"input_ids": TOKENS, "attention_mask": mask}
    labels = TOKENS.masked_fill(mask == 0, -100)
    if name == "own":
        model = tiny("EReg(SM(t)+ScFuFFN)", max_entropy="log_visible", tolerance_margin=0.0)
    else:
        model = stock_model(name, "sdpa")
        model = aero.with_entropy_penalty(model, **SETTINGS, max_entropy="log_visible")
    ones = {**batch, "attention_mask": mask.bool().long()}
    found, expected = aero.entropies(model, batch), aero.entropies(model, ones)
    assert torch.equal(found.visible_keys, expected.visible_keys)
    assert found.visible_keys.max() <= T
    for one, other in zip(found.layers, expected.layers, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    model.train()
    with torch.no_grad():
        losses = [model(**given, labels=labels) for given in (batch, ones)]
    assert torch.equal(losses[0].entropy_loss, losses[1].entropy_loss)
    assert torch.equal(losses[0].loss, losses[1].loss)


def test_own_penalties_count_what_a_mask_per_query_shows():
    model = tiny("EReg(SM(t)+ScFuFFN)", max_entropy="log_visible", tolerance_margin=0.0).train()
    output = model(TOKENS, attention_mask=PER_QUERY.expand(2, 1, T, T), labels=TOKENS)
    keys = torch.arange(1, T + 1).clamp(max=3).expand(2, 2, T)
    entropies = [layer.detach().double() for layer in output.entropies]
    penalty = 0
    for layer, seen in zip(entropies, keys, strict=True):
        penalty += (layer - 0.5 * seen[None, None, 0].double().log()).square().sum((0, 2)).mean()
    expected = penalty / 2 * model.config.entropy_tokens / 20
    torch.testing.assert_close(output.entropy_loss.double(), expected, rtol=1e-5, atol=0)


def test_masks_that_differ_by_head_are_refused():
    mask = PER_QUERY.expand(2, 4, T, T)
    model = aero.with_entropy_penalty(stock_model("gpt2", "sdpa"))
    message = r": attention_mask must be the same for all heads, .* got \[2, 4, 11, 11\]"
    with pytest.raises(ValueError, match="entropies" + message):
        aero.entropies(model, {"input_ids": TOKENS, "attention_mask": mask})
    with pytest.raises(ValueError, match="with_entropy_penalty" + message):
        model.train()(TOKENS, attention_mask=mask, labels=TOKENS)


def test_keys_are_counted_only_for_a_penalty():
    model = tiny("EReg(SM+LN+G)").eval()
    by_head = PER_QUERY.expand(2, model.config.spec.num_heads, T, T)
    whole = PER_QUERY.expand(2, 1, T, T)
    with torch.no_grad():
        found = model(TOKENS, attention_mask=by_head).logits
        assert torch.equal(found, model(TOKENS, attention_mask=whole).logits)
        assert model.transformer(TOKENS, attention_mask=padding("left")).visible_keys is None
        with pytest.raises(ValueError, match="must be the same for all heads"):
            model(TOKENS, attention_mask=by_head, labels=TOKENS)


def test_threads_count_their_own_layers():
    found = {}

    def measure(name):
        model = windowed_model(name, "sdpa")
        found[name] = [aero.entropies(model, TOKENS).visible_keys for _ in range(5)]

    threads = [threading.Thread(target=measure, args=(name,)) for name in ("mistral", "gemma3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, keys in found.items():
        assert all(torch.equal(each, seen_by_eager(name)) for each in keys)
    assert len(found) == 2
