"""Batches that transformers' flattening collator packs are one call without a mask of T x T."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel, DataCollatorWithFlattening

from .stock_models import stock_model
from .test_packed_sequences import own

LENGTHS = (5, 1, 23, 11)
FEATURES = [
    {"input_ids": torch.randint(1, 16, (n,), generator=torch.Generator().manual_seed(n)).tolist()}
    for n in LENGTHS
]


class Squares(TorchDispatchMode):
    """Notes every tensor of the step that is [..., n, n], or booleans of as many."""

    def __init__(self, n):
        super().__init__()
        self.n, self.found = n, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for x in results if isinstance(results, tuple | list) else (results,):
            is_square = isinstance(x, torch.Tensor) and x.shape[-2:] == (self.n, self.n)
            if is_square or (getattr(x, "dtype", None) == torch.bool and x.numel() >= self.n**2):
                self.found.append(str(func))
        return results


def gradients(model, loss):
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


def of_separate_sequences(model):
    """The mean loss over the predicted tokens of all sequences, of calls of one sequence each."""
    losses = []
    for feature in FEATURES:
        ids = torch.tensor([feature["input_ids"]])
        logits = model(ids, use_cache=False).logits[0]
        losses += [torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum")]
    return sum(losses) / (sum(LENGTHS) - len(LENGTHS))


@pytest.mark.parametrize("has_starts", [False, True], ids=["positions", "positions and starts"])
@pytest.mark.parametrize(
    "name", ["gpt2", "gpt2-by-layer", "llama-grouped", "mistral-window", "qwen2", "SM(t)+LN+G"]
)
def test_the_collators_batches_train_as_separate_sequences(name, has_starts):
    is_own = name == "SM(t)+LN+G"
    if is_own and has_starts:
        pytest.skip("own networks take positions alone")
    model = own(name) if is_own else stock_model(name, "aero", torch.float64)
    reference = own(name) if is_own else stock_model(name, "eager", torch.float64)
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=has_starts)(FEATURES)
    with Squares(sum(LENGTHS)) as seen:
        loss = model.train()(**batch, use_cache=False).loss
        found = gradients(model, loss)
    assert not seen.found
    wanted = of_separate_sequences(reference.train())
    # Models' own losses are of float32.
    torch.testing.assert_close(loss.double(), wanted.double(), rtol=1e-6, atol=0)
    for parameter, gradient in gradients(reference, wanted).items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-5, atol=1e-6)


def test_a_collator_of_starts_alone_packs_too():
    """Positions then go on over the batch, which rotary ones do not see."""
    model = stock_model("llama-grouped", "aero", torch.float64)
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=False)
    batch = collator(FEATURES)
    loss = model(**batch, use_cache=False).loss
    wanted = of_separate_sequences(stock_model("llama-grouped", "eager", torch.float64))
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)


def test_starts_in_a_list_are_those_in_a_tensor():
    model = stock_model("llama-grouped", "aero", torch.float64)
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=False)
    batch = collator(FEATURES)
    wanted = of_separate_sequences(stock_model("llama-grouped", "eager", torch.float64))
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        batch[name] = batch[name].tolist()
    loss = model(**batch, use_cache=False).loss
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)


def test_starts_that_are_none_pack_nothing():
    ids = torch.tensor([[5, 3, 8, 1]])
    settings = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**settings, intermediate_size=8, vocab_size=16)
    models = [stock_model("llama-grouped", "aero"), BertModel(config).eval()]
    for model in models:
        model.set_attn_implementation("aero")
        with torch.no_grad():
            given = model(ids, cu_seq_lens_q=None, cu_seq_lens_k=None)[0]
            assert torch.equal(given, model(ids)[0])


def test_starts_that_a_mask_contradicts_are_refused():
    model = stock_model("mistral-window", "aero")
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=False)
    with pytest.raises(ValueError, match="sequences before theirs"):
        model(**collator(FEATURES), use_cache=False)
    model = stock_model("llama-grouped", "aero")
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(FEATURES)
    batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = torch.tensor([0, 7, 40], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(**batch, use_cache=False)


def test_several_rows_of_packed_sequences_are_one_call():
    model = stock_model("llama-grouped", "aero", torch.float64)
    ids = torch.randint(1, 16, (2, 9), generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2], list(range(9))])
    with Squares(9) as seen, torch.no_grad():
        logits = model(ids, position_ids=positions, use_cache=False).logits
    assert not seen.found
    parts = [ids[:1, :4], ids[:1, 4:6], ids[:1, 6:], ids[1:]]
    with torch.no_grad():
        alone = [model(part, use_cache=False).logits[0] for part in parts]
    torch.testing.assert_close(logits.flatten(0, 1), torch.cat(alone))


def test_dropout_of_packed_sequences_is_that_of_the_weights():
    model = stock_model("gpt2", "aero", attn_pdrop=0.5).train()
    batch = DataCollatorWithFlattening()(FEATURES)
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(float(model(**batch, use_cache=False).loss.detach()))
    assert losses[0] == losses[1] != losses[2]


def test_packed_masks_are_the_booleans_that_they_stand_for():
    from aero.nn.packed_mask import PackedMask

    mask = PackedMask(torch.tensor([0, 2, 5, 8, 10], dtype=torch.int32), 2, 5, window=1)
    ids = torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, 3, 3]])
    ahead = torch.arange(5)[:, None] - torch.arange(5)
    wanted = (ids[:, :, None] == ids[:, None, :]) & (ahead >= 0) & (ahead <= 1)
    assert mask.shape == (2, 1, 5, 5)
    assert mask.dtype == torch.bool
    assert torch.equal(mask[:, 0], wanted)
    assert torch.equal(mask & True, wanted[:, None])
    assert torch.equal(mask.sum(-1), wanted[:, None].sum(-1))
