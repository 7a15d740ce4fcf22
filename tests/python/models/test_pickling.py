"""Models go through pickle, `torch.save`, `copy.deepcopy` and other processes as they are."""

import copy
import io
import pickle

import pytest
import torch
import torch.multiprocessing
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

import aero
from aero.models import without_entropy_penalty

from .labels import tiny
from .stock_models import stock_model


def through_torch(value):
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


WAYS = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch": through_torch,
    "deepcopy": copy.deepcopy,
}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
SIZES = {"vocab_size": 16, "bos_token_id": 0, "eos_token_id": 0}


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, **NO_DROPOUT, **SIZES))


def pythia():
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=32,
            max_position_embeddings=32, **SIZES,
        )
    )  # fmt: skip


MODELS = {
    "own": lambda: tiny("EReg(SM(t)+FN+ScFuFFN)"),
    "penalty": lambda: aero.with_entropy_penalty(stock_model("llama-grouped", "sdpa"), weight=0.3),
    "strengths": lambda: aero.with_entropy_penalty(
        stock_model("gpt2", "sdpa"), strengths="learned"
    ),
    "in place": lambda: aero.convert(gpt2(), "SM(t)+FN(scalar)+ScFuFFN", inplace=True),
    "in place, Pythia": lambda: aero.convert(pythia(), "SM+LN+R", inplace=True),
    "in place, penalty": lambda: aero.with_entropy_penalty(
        aero.convert(gpt2(), "SM+ScFuFFN", inplace=True)
    ),
}


def trained(model):
    """Losses and gradients of a call, and the row entropies of another."""
    tokens = torch.arange(12).view(2, 6)
    model.train().zero_grad()
    output = model(tokens, labels=tokens)
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    entropies = aero.entropies(model, tokens).layers
    return {"loss": output.loss.detach(), "entropies": torch.stack(list(entropies)), **gradients}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_trains_as_its_model(name, way):
    model = MODELS[name]()
    other = WAYS[way](model)
    assert type(other) is type(model)
    assert other.state_dict().keys() == model.state_dict().keys()
    expected, found = trained(model), trained(other)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    # A model that was in use goes the same ways.
    torch.testing.assert_close(
        trained(WAYS[way](model))["entropies"], trained(model)["entropies"], rtol=0, atol=0
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_penalty_can_be_taken_from_a_copy(way):
    plain = without_entropy_penalty(WAYS[way](MODELS["penalty"]()))
    assert type(plain) is type(stock_model("llama-grouped", "sdpa"))


@pytest.mark.parametrize("way", WAYS)
def test_outputs_with_the_parts_of_the_loss_are_copied(way):
    tokens = torch.arange(12).view(2, 6)
    with torch.no_grad():
        output = MODELS["penalty"]().train()(tokens, labels=tokens)
    other = WAYS[way](output)
    assert type(other) is type(output) and list(other) == list(output)
    for name in ("loss", "lm_loss", "entropy_loss", "logits"):
        assert torch.equal(other[name], output[name]) and torch.equal(
            getattr(other, name), output[name]
        )


def check_kept(path):
    """Trains a pickled model and finds its entropies, as a process does that did not make it."""
    kept, expected = pickle.loads(path.read_bytes())
    model = pickle.loads(kept)
    tokens = torch.arange(12).view(2, 6)
    output = model.train()(tokens, labels=tokens)
    output.loss.backward()
    entropies = torch.stack(list(aero.entropies(model, tokens).layers))
    torch.testing.assert_close(output.loss.detach(), expected["loss"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropies, expected["entropies"], rtol=1e-5, atol=1e-6)


def test_a_process_that_never_made_such_a_model_trains_it_and_finds_its_entropies(
    tmp_path, fork_server
):
    models = {name: make() for name, make in MODELS.items()}
    models["plain"] = stock_model("gpt2", "aero_entropy")
    models["penalty in place"] = aero.convert(gpt2(), "EReg(SM(t)+ScFuFFN)", inplace=True)
    paths = []
    for name, model in models.items():
        if name != "plain":  # transformers' own cannot be pickled once they recorded outputs
            trained(model)
        kept = pickle.dumps(model)
        paths.append(tmp_path / name)
        paths[-1].write_bytes(pickle.dumps((kept, trained(pickle.loads(kept)))))
    # Each in a process of its own, where no other model can have told transformers what to record.
    for path in paths:
        process = fork_server.Process(target=check_kept, args=(path,))
        process.start()
        process.join()
        assert process.exitcode == 0, path.name
