"""`attn_implementation="aero"` and `"aero_entropy"` on models as `transformers` ships them."""

import math
import re
import warnings

import pytest
import torch
from transformers import DynamicCache

import aero
from aero.models.outputs import CACHE_FIELD

from .stock_models import CONFIGS, stock_model

T = 11
NAMES = list(CONFIGS)
UNIT_ROUNDOFF = 2.0**-24
# For tests that do not depend on the kind of attention.
SOME = ["gpt2", "llama-grouped"]


def tokens(batch=2, length=T, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 16, (batch, length), generator=generator)


def padding(side, length=T):
    mask = torch.ones(2, length, dtype=torch.long)
    columns = slice(0, 4) if side == "left" else slice(-4, None)
    mask[1, columns] = 0
    return mask


def positions(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def entropies_of(weights):
    weights = weights.double()
    return -torch.xlogy(weights, weights).sum(dim=-1)


def assert_as_exact_as_eager(name, rows=slice(None), **arguments):
    """Logits within four times eager's own rounding error, measured against float64.

    Both compute the same sums in another order, so their errors have one distribution; four is
    room for the spread of the largest of some hundred errors.
    """
    with torch.no_grad():
        exact = stock_model(name, "sdpa", torch.float64)(**arguments).logits[rows]
        eager = stock_model(name, "eager")(**arguments).logits[rows]
        ours = stock_model(name, "aero")(**arguments).logits[rows]
    floor = UNIT_ROUNDOFF * exact.abs().max()
    allowed = 4 * max((eager - exact).abs().max(), floor)
    assert (ours - exact).abs().max() <= allowed


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_as_exact_as_eagers(name):
    assert_as_exact_as_eager(name, input_ids=tokens())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_padded_batches_are_as_exact_as_eagers(name, side):
    mask = padding(side)
    assert_as_exact_as_eager(
        name,
        mask.bool(),
        input_ids=tokens(),
        attention_mask=mask,
        position_ids=positions(mask),
    )


@pytest.mark.parametrize("name", NAMES)
def test_entropies_are_those_of_eagers_weights(name):
    mask = padding("left")
    arguments = {"attention_mask": mask, "position_ids": positions(mask)}
    with torch.no_grad():
        eager = stock_model(name, "eager")(tokens(), output_attentions=True, **arguments)
        ours = stock_model(name, "aero_entropy")(tokens(), output_attentions=True, **arguments)
    assert len(ours.attentions) == 2
    # d(-sum p ln p) <= sum |ln p + 1| |dp|, with weights off by some 32 rounding errors of scores
    # up to 10.
    allowed = 320 * UNIT_ROUNDOFF * (1 + math.log(T))
    rows = mask.bool()[:, None].expand(2, 4, T)
    for entropy, weights in zip(ours.attentions, eager.attentions, strict=True):
        assert entropy.dtype == torch.float32
        difference = (entropy - entropies_of(weights))[rows].abs().max()
        assert difference <= allowed
        assert entropy.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_attentions_that_are_not_there_are_warned_of_once_per_model(name):
    message = (
        f"'aero' of {type(stock_model(name, 'aero')).__name__} returns no.* 'aero_entropy' gives"
    )
    for _ in range(2):  # with the filter of a script: the same line, and another model
        model = stock_model(name, "aero")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("default")
            for _ in range(3):
                assert model(tokens(), output_attentions=True).attentions == ()
        assert len(said) == 1 and re.search(message, str(said[0].message))
        assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh = stock_model(name, "aero")
        fresh(tokens())
        aero.entropies(fresh, tokens())


@pytest.mark.parametrize("names", [{}, {"__name__": None}])
def test_code_of_no_module_is_warned_of_attentions_too(names):
    code = compile("found = model(ids, output_attentions=True)", "a notebook of one's own", "exec")
    names = {**names, "model": stock_model("gpt2", "aero"), "ids": tokens()}
    with pytest.warns(UserWarning, match="returns no attentions") as said:
        exec(code, names)
    assert names["found"].attentions == () and said[0].filename == "a notebook of one's own"


def test_a_window_is_seen_in_the_entropies():
    model = stock_model("mistral-window", "aero_entropy")
    with torch.no_grad():
        for layer in model(tokens(), output_attentions=True).attentions:
            assert (layer <= math.log(4) * (1 + 8 * UNIT_ROUNDOFF)).all()


GENERATIONS = {
    "dynamic cache": {},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "chunked prefill": {"prefill_chunk_size": 4},
    "beam search": {"num_beams": 3},
}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
@pytest.mark.parametrize("way", GENERATIONS)
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "llama-grouped", "mistral-window"])
def test_generation_gives_eagers_tokens(name, way, padded):
    # In float32: with a float64 mask eager's float32 softmax makes NaN of rows that see nothing.
    arguments = {"max_new_tokens": 6, "do_sample": False, **GENERATIONS[way]}
    arguments["attention_mask"] = padding("left") if padded else torch.ones(2, T, dtype=torch.long)
    made = [
        stock_model(name, implementation).generate(tokens(), **arguments)
        for implementation in ("eager", "aero")
    ]
    assert made[0].shape == (2, T + 6)
    assert torch.equal(*made)


@pytest.mark.parametrize("name", SOME)
def test_assisted_generation_gives_eagers_tokens(name):
    made = []
    for implementation in ("eager", "aero_entropy"):
        model = stock_model(name, implementation, torch.float64)
        draft = stock_model(name, implementation, torch.float64, num_hidden_layers=1)
        made.append(
            model.generate(tokens(1), assistant_model=draft, max_new_tokens=8, do_sample=False)
        )
    assert torch.equal(*made)


@pytest.mark.parametrize("name", SOME)
def test_entropies_of_every_generated_token_come_along(name):
    model = stock_model(name, "aero_entropy")
    made = model.generate(
        tokens(1), max_new_tokens=3, output_attentions=True, return_dict_in_generate=True
    )
    with torch.no_grad():
        whole = model(made.sequences[:, :-1], output_attentions=True).attentions
    shapes = [tuple(layer.shape) for step in made.attentions for layer in step]
    assert shapes == [(1, 4, T)] * 2 + [(1, 4, 1)] * 4
    for index, layer in enumerate(whole):
        joined = torch.cat([step[index] for step in made.attentions], dim=-1)
        torch.testing.assert_close(joined, layer)


@pytest.mark.parametrize("name", SOME)
def test_a_chunk_after_a_cache_equals_the_whole(name):
    model, ids = stock_model(name, "aero", torch.float64), tokens()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        whole = model(ids).logits
        parts = [model(part, **{CACHE_FIELD: cache}).logits for part in ids.split([4, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def gradients(model, **arguments):
    model.train()
    output = model(tokens(), labels=tokens(), output_attentions=True, use_cache=False, **arguments)
    loss = output.loss + sum(layer.square().mean() for layer in output.attentions)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", SOME)
def test_gradients_of_entropies_are_those_of_eagers_weights(name):
    ours = gradients(stock_model(name, "aero_entropy", torch.float64))
    model = stock_model(name, "eager", torch.float64).train()
    output = model(tokens(), labels=tokens(), output_attentions=True)
    loss = output.loss
    for weights in output.attentions:
        # xlogy has no gradient at the masked zeros.
        loss = loss + (-(weights * weights.clamp(min=1e-300).log()).sum(-1)).square().mean()
    loss.backward()
    # Llama's eager softmax is in float32 whatever the model's dtype.
    allowed = {"gpt2": 1e-10, "llama-grouped": 1e-5}[name]
    for ours_of_it, parameter in zip(ours, model.parameters(), strict=True):
        scale = parameter.grad.abs().max()
        assert (ours_of_it - parameter.grad).abs().max() <= allowed * scale


@pytest.mark.parametrize("name", SOME)
def test_gradient_checkpointing_changes_no_gradient(name):
    expected = gradients(stock_model(name, "aero_entropy"))
    model = stock_model(name, "aero_entropy")
    model.gradient_checkpointing_enable()
    for got, wanted in zip(gradients(model), expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "left-padded"])
def test_compiled_models_equal_eager_ones(padded, use_cache):
    model = stock_model("gpt2", "aero_entropy")
    arguments = {"output_attentions": True, "use_cache": use_cache}
    if padded:
        mask = padding("left")
        arguments |= {"attention_mask": mask, "position_ids": positions(mask)}
    with torch.no_grad():
        # The first call installs hooks under a lock, which no graph can hold.
        expected = model(tokens(), **arguments)
        torch.compiler.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=not use_cache)
        got = compiled(tokens(), **arguments)
    rows = padding("left").bool() if padded else slice(None)
    torch.testing.assert_close(got.logits[rows], expected.logits[rows])
    torch.testing.assert_close(got.attentions, expected.attentions)


@pytest.mark.parametrize(
    "name, backend", [*((n, "aot_eager") for n in NAMES), ("gpt2", "inductor")]
)
def test_models_compile_without_a_break_in_the_graph(name, backend):
    model = stock_model(name, "aero_entropy")
    arguments = {"output_attentions": True, "use_cache": False}
    expected = model(tokens(), **arguments)
    torch.compiler.reset()
    got = torch.compile(model, backend=backend, fullgraph=True)(tokens(), **arguments)
    torch.testing.assert_close(got.logits, expected.logits)
    torch.testing.assert_close(got.attentions, expected.attentions)
    weights = [w for w in model.parameters() if w.requires_grad]
    gradients = [
        torch.autograd.grad(
            output.logits.square().mean() + sum(map(torch.mean, output.attentions)), weights
        )
        for output in (got, expected)
    ]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_as_exact_as_eagers(name):
    with torch.no_grad():
        exact = stock_model(name, "sdpa", torch.float64)(tokens()).logits
        with torch.autocast("cpu", torch.bfloat16):
            eager = stock_model(name, "eager")(tokens()).logits
            output = stock_model(name, "aero_entropy")(tokens(), output_attentions=True)
    assert output.attentions[0].dtype == torch.float32
    # Mean errors: of two thousand roundings to 8 bits the largest is mostly luck.
    assert (output.logits - exact).abs().mean() <= 1.5 * (eager - exact).abs().mean()


@pytest.mark.parametrize("name", SOME)
def test_gradients_under_autocast_are_as_exact_as_eagers(name):
    exact = gradients(stock_model(name, "aero_entropy"))
    with torch.autocast("cpu", torch.bfloat16):
        ours = gradients(stock_model(name, "aero_entropy"))
        model = stock_model(name, "eager").train()
        output = model(tokens(), labels=tokens(), output_attentions=True)
        loss = output.loss
        for weights in output.attentions:
            weights = weights.float().clamp(min=1e-30)
            loss = loss + (-(weights * weights.log()).sum(-1)).square().mean()
        loss.backward()
    eager = [parameter.grad for parameter in model.parameters()]

    def error(found):
        pairs = zip(found, exact, strict=True)
        return sum((got - wanted).square().sum() for got, wanted in pairs).sqrt()

    # The ratio was 0.86 to 1.44 over eight batches: both round to 8 bits, at other places.
    assert error(ours) <= 2 * error(eager)


def test_the_implementation_changes_at_run_time():
    model = stock_model("gpt2", "sdpa")
    model.set_attn_implementation("aero_entropy")
    assert len(model(tokens(), output_attentions=True).attentions) == 2
