"""The norms of `norms.py` and `layer_norm_removal.py`: formulas, gradients and their end."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aero.nn import FoldableNorm
from benchmarks.paper.experiments import layer_norm_removal as removal
from benchmarks.paper.experiments import norms

WIDTH = 5


def text(scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["power", "unified"])
def test_both_begin_as_a_foldable_norm_with_the_statistics_of_the_batch(kind):
    relative, foldable, x = norms.ByWindow(WIDTH, kind, steps=100), FoldableNorm(WIDTH), text()
    assert relative(x).allclose(foldable(x), atol=1e-6)


@pytest.mark.parametrize("kind", ["power", "unified"])
def test_their_gradient_of_a_text_that_repeats_becomes_the_exact_one(kind):
    # With one text, running and batch statistics agree, and so must the two gradients in the end.
    relative, x, weights = norms.ByWindow(WIDTH, kind, steps=100), text(), text(1.0)
    for _ in range(300):
        again = x.clone().requires_grad_()
        (weights * relative(again)).sum().backward()
    exact = x.clone().requires_grad_()
    (weights * exact * exact.square().mean((0, 1), keepdim=True).rsqrt()).sum().backward()
    assert again.grad.allclose(exact.grad, atol=1e-4)
    without = weights * x.square().mean((0, 1)).rsqrt()
    assert not again.grad.allclose(without, atol=1e-2)


@pytest.mark.parametrize(
    "norm",
    [
        norms.ByWindow(WIDTH, "power", 100),
        norms.ByWindow(WIDTH, "unified", 100),
        norms.Progressive(WIDTH, "prepbn"),
        norms.Progressive(WIDTH, "taper"),
    ],
    ids=["power", "unified", "prepbn", "taper"],
)
def test_each_is_an_affine_map_of_every_channel_when_the_training_is_over(norm):
    for _ in range(5):
        norm(text())
    norm.eval()
    one, other = text(), text().flip(0)
    nothing = norm(torch.zeros_like(one))
    assert (norm(one) + norm(other) - nothing).allclose(norm(one + other), atol=1e-5)
    moved = one.clone()
    moved[..., 0] += 1.0
    assert norm(moved)[..., 1:].equal(norm(one)[..., 1:])


@pytest.mark.parametrize("kind", ["prepbn", "taper"])
def test_the_others_begin_as_layer_norm_and_end_without_it(kind):
    norm, x = norms.Progressive(WIDTH, kind), text()
    layer = torch.nn.functional.layer_norm(x, (WIDTH,))
    assert norm(x).allclose(layer, atol=1e-5)
    norm.progress = 1.0
    assert not norm(x).allclose(layer, atol=0.1)
    if kind == "taper":
        inverse = x.var(-1, unbiased=False).rsqrt().mean()
        expected = 0.9 + 0.1 * inverse  # one step of the average, which starts at 1
        assert norm(x).allclose(expected * x, atol=1e-4)


def test_the_networks_have_the_norms_that_the_table_names():
    for name, (_, kind, _) in norms.NORMS.items():
        stack = norms.build(name, seed=1, steps=100).transformer
        blocks = list(stack.blocks())
        found = {type(getattr(block, place)) for block in blocks for place in ("ln_1", "ln_2")}
        assert len(blocks) == 6 and len(found) == 1 and type(stack.ln_f) is torch.nn.LayerNorm
        if kind:
            assert found < {norms.ByWindow, norms.Progressive}, name


def test_layer_norms_go_in_the_published_order_and_fold_in_the_end():
    network, plain = removal.build("SM+LN+R", seed=1), removal.build("SM+LN+R", seed=1)
    with torch.no_grad():  # gains and biases that a wrong fold would lose
        for parameter in plain.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    network.load_state_dict(plain.state_dict())
    going, fixed = removal.Removal(network), []
    tokens = torch.randint(1024, (2, 128))
    # Without dropout the training mode only measures deviations.
    before, expected = network.train()(tokens).logits, plain(tokens).logits
    assert before.allclose(expected, rtol=1e-4, atol=1e-4)
    blocks, last_norm = network.transformer.blocks(), network.transformer.ln_f
    for step in range(300):
        going.on_step_begin(None, SimpleNamespace(global_step=step, max_steps=300), None)
        norms_of_blocks = [
            (block.ln_2.fixed, block.attn.c_attn.scores_fixed, block.attn.c_attn.norm.fixed)
            for block in blocks
        ]
        fixed.append([*map(sum, zip(*norms_of_blocks, strict=True)), last_norm.fixed])
    # Six layers: one every four steps from 20 and from 44, one every six from 68, the last at 104.
    first = [next(i for i, row in enumerate(fixed) if row[kind]) for kind in range(4)]
    last = [next(i for i, row in enumerate(fixed) if row[kind] == 6) for kind in range(3)]
    assert (first, last) == ([20, 44, 68, 104], [40, 64, 98])
    after = network.eval()(tokens).logits
    assert not after.allclose(expected, atol=0.1)
    folded = removal.folded(network).eval()
    assert folded.config.spec.norm == folded.config.spec.final_norm == "none"
    assert (folded(tokens).logits - after).abs().max() < 1e-4 * after.abs().max()


@pytest.mark.parametrize("module", [norms, removal], ids=lambda module: module.__name__)
def test_the_committed_page_follows_from_its_runs(module):
    study, name = module.STUDY, module.__name__.rpartition(".")[2]
    (file,) = (Path(__file__).parents[2] / "results").glob(f"{name}_*.json")
    content = json.loads(file.read_text("utf-8"))
    assert norms.judged(study, content["runs"]) == content["rows"]
    # A page is a record: it names the command as it was called when it was written.
    committed = file.with_suffix(".md").read_text("utf-8")
    now = committed.replace(f"python benchmarks/{name}.py", f"python -m {module.__name__}")
    assert now != committed and norms.page(study, content) == now
