"""Whoever builds the optimizer by the usual rules is told at its first step what it decays."""

import copy
import gc
import pickle
import re
import warnings
from collections import Counter

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import aero
from aero.models import EntropyPenalty
from aero.models.initialization import decay_parameter_names
from aero.nn import DropInAttention, Temperature

from .labels import tiny
from .stock_models import stock_model

# One of each kind of scale.
LABELS = [
    "EReg(SM(t)+FN+ScFuFFN)",
    "EReg(SM(t:head)+LR(global))",
    "SM(t:scalar)+FN(scalar)+LR(layer)",
    "SM+Derf+ScFFN_i1",
    "SOTA:SM+ScFFN",
    "SM+WNFFN(qkvo+ffn)",
    "SM+FN+R+D3",
    "SM+LN+G+S2",
    "SM+ScFuFFN+C4",
]
# Ends of the names of all parameters that are no weights and no biases; LayerNorm's are as ever.
SCALE = re.compile(
    r"(temperature\.value|entropy_threshold|threshold_bias|strength_bias|alpha|beta|gamma|gain"
    r"|shift|negative_slope|original0)$"
)


def scales(model):
    """Names of the parameters that decay must spare, by their names alone."""
    spec = getattr(getattr(model, "config", None), "spec", None)
    is_own_norm = spec is not None and spec.norm not in ("none", "layer")
    return {
        name
        for name, _ in model.named_parameters()
        if SCALE.search(name)
        or (is_own_norm and re.search(r"(^|\.)ln_(1|2|f)\.weight$", name))
        # Factors of channels; the taps of a full one are matrices.
        or (name.endswith("convolution.weight") and spec.convolution != "full")
    }


def two_groups(model, is_decayed):
    decayed = [p for name, p in model.named_parameters() if is_decayed(name, p)]
    others = [p for name, p in model.named_parameters() if not is_decayed(name, p)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-3)


def stock_trainer_rule(model, tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    return set(Trainer(model, arguments).get_decay_parameter_names(model))


def one_step(model, optimizer):
    """What the first step says."""
    tokens = torch.arange(12).view(2, 6)
    model.train()(tokens, labels=tokens).loss.backward()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.step()
    return [str(one.message) for one in said]


def told(messages):
    """The parameters that the warning about decay names, and how many there are of each."""
    (message,) = [one for one in messages if one.startswith("weight decay of this AdamW pulls")]
    assert "decay_parameter_names" in message and "AeroTrainer" in message
    counts = Counter()  # of all classes of modules together
    for name, count in re.findall(r"\.(\w+) \((\d+)\)", message):
        counts[name] += int(count)
    return counts


@pytest.mark.parametrize("label", LABELS)
def test_a_first_step_names_exactly_the_scales_that_the_usual_rules_decay(label, tmp_path):
    model = tiny(label)
    expected = scales(model)
    stock = stock_trainer_rule(model, tmp_path)
    rules = {
        "stock Trainer": lambda name, parameter: name in stock,
        "nanoGPT": lambda name, parameter: parameter.dim() >= 2,
        "model.parameters()": lambda name, parameter: True,
    }
    wrong = 0
    for is_decayed in rules.values():
        taken = {n for n, p in model.named_parameters() if is_decayed(n, p)} & expected
        messages = one_step(model, two_groups(model, is_decayed))
        assert len(messages) == (1 if taken else 0)
        assert not taken or told(messages) == Counter(name.rpartition(".")[2] for name in taken)
        wrong += bool(taken)
    assert wrong >= 2
    own = set(decay_parameter_names(model))
    assert not own & expected
    assert one_step(model, two_groups(model, lambda name, parameter: name in own)) == []


def test_it_is_said_once_per_optimizer_and_only_where_decay_is():
    model = tiny("EReg(SM(t)+FN+ScFuFFN)")
    optimizer = torch.optim.AdamW(model.parameters())  # decays by 0.01 unasked
    assert len(one_step(model, optimizer)) == 1 and one_step(model, optimizer) == []
    assert len(one_step(model, torch.optim.SGD(model.parameters(), 1e-3, weight_decay=0.1))) == 1
    assert one_step(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0)) == []
    assert one_step(model, torch.optim.SGD(model.parameters(), 1e-3)) == []
    frozen = tiny("SM(t)+LN+G")
    for block in frozen.transformer.blocks():
        block.attn.temperature.requires_grad_(False)
    assert one_step(frozen, torch.optim.AdamW(frozen.parameters())) == []


def test_models_without_scales_hear_nothing():
    for model in (tiny("SM+LN+G"), stock_model("gpt2", "sdpa")):
        assert one_step(model, torch.optim.AdamW(model.parameters(), weight_decay=0.1)) == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_known_too(copied):
    model = copied(tiny("SM(t:head)+FN+R"))
    gc.collect()
    found = told(one_step(model, torch.optim.AdamW(model.parameters(), weight_decay=0.1)))
    assert found["value"] == 2


def test_thresholds_of_a_stock_model_and_of_one_converted_in_place_are_told(tmp_path):
    penalized = aero.with_entropy_penalty(stock_model("gpt2", "sdpa"), strengths="learned")
    stock = stock_trainer_rule(penalized, tmp_path)
    assert not stock & scales(penalized)
    assert one_step(penalized, two_groups(penalized, lambda name, _: name in stock)) == []
    found = told(one_step(penalized, two_groups(penalized, lambda _, p: p.dim() >= 2)))
    assert found == {"threshold_bias": 1, "strength_bias": 1}

    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=32, attn_pdrop=0.0)
    converted = aero.convert(GPT2LMHeadModel(config), "SM(t)+ScFuFFN", inplace=True)
    found = told(one_step(converted, two_groups(converted, lambda _, p: p.dim() >= 2)))
    assert found == {"value": 2}


def test_matrices_that_a_subclass_adds_are_weights():
    class Extended(aero.AeroForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.extra = torch.nn.Parameter(torch.ones(4, 4))

    model = Extended(tiny("EReg(SM(t)+ScFuFFN)").config)
    decayed = decay_parameter_names(model)
    assert "extra" in decayed
    assert one_step(model, two_groups(model, lambda name, _: name in decayed)) == []
    found = told(one_step(model, two_groups(model, lambda _, p: p.dim() >= 2)))
    assert found == {"value": 2}


def test_a_temperature_in_a_network_of_ones_own_is_told():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            temperature = Temperature("head_position", num_heads=2, context_length=8)
            self.attention = DropInAttention(8, 2, host="nanogpt", temperature=temperature)

        def forward(self, tokens, labels):
            self.loss = self.attention(torch.randn(2, 6, 8)).square().mean()
            return self

    model = Network()
    assert told(one_step(model, two_groups(model, lambda _, p: p.dim() >= 2))) == {"value": 1}


def test_a_step_without_the_penalty_in_its_loss_says_so():
    def messages(model, loss):
        loss.backward()
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            optimizer.step()
        return [str(one.message) for one in said]

    tokens = torch.arange(12).view(2, 6)
    model = tiny("EReg(SM(t)+ScFuFFN)").train()
    (message,) = messages(model, model(tokens).logits.square().mean())
    assert message.startswith("the entropy penalty is not in the loss")
    assert "entropy_threshold (2)" in message
    model.zero_grad()
    assert messages(model, model(tokens, labels=tokens).loss) == []
    # A loop of its own with the module's penalty is right, and is told nothing.
    plain = tiny("SM(t)+ScFuFFN").train()
    penalty = EntropyPenalty(torch.full((2, 2), 0.5), context_length=32)
    both = torch.nn.ModuleList([plain, penalty])
    output = plain(tokens, labels=tokens)
    assert messages(both, output.loss + 1e-4 * penalty(output.entropies)) == []
