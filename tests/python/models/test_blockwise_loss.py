"""The loss of `AeroForCausalLM` with ``logits_to_keep=None``, which forms no logits as a whole."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from tests.python.refusals import assert_refused
from torch.utils._python_dispatch import TorchDispatchMode

from aero.models import loss as loss_module
from aero.models.loss import head_loss

from .labels import tiny

EREG = "EReg(SM(t)+ScFuFFN)"
STRONG = {"entropy_weight": 0.1, "tolerance_margin": 0.0, "temperature_init": 0.5}
# Unit roundoff of what products and logits are computed in.
ROUNDOFF = {torch.float64: 2**-53, torch.float32: 2**-24, torch.bfloat16: 2**-8}


@pytest.fixture(autouse=True)
def _few_logits_go_by_blocks(monkeypatch):
    monkeypatch.setattr(loss_module, "_FEW_LOGITS", 0)


def _gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _assert_near(actual, expected, bound):
    assert bool(((actual.double() - expected).abs() <= bound).all())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "autocast"])
@pytest.mark.parametrize(
    ("sequences", "length", "classes"), [(1, 2, 1), (3, 13, 7), (4, 128, 5000), (2, 600, 300)]
)
def test_loss_and_gradients_are_those_of_the_whole_logits(dtype, sequences, length, classes):
    torch.manual_seed(0)
    width = 24
    stored = torch.float32 if dtype == "autocast" else getattr(torch, dtype)
    computed = torch.bfloat16 if dtype == "autocast" else stored
    hidden = torch.randn(sequences, length, width).to(stored).requires_grad_()
    weight = (0.3 * torch.randn(classes, width)).to(stored).requires_grad_()
    labels = torch.randint(classes, (sequences, length))
    labels[0, ::3] = -100
    with torch.autocast("cpu", torch.bfloat16) if dtype == "autocast" else nullcontext():
        loss = head_loss(hidden, weight, labels, 40)
    assert loss.dtype == torch.promote_types(stored, torch.float32)
    d_hidden, d_weight = torch.autograd.grad(0.7 * loss, (hidden, weight))
    assert d_hidden.dtype == d_weight.dtype == stored

    # In float64 from the operands as they were rounded, by torch's cross entropy.
    x, w = (
        tensor.detach().to(computed).double().requires_grad_()
        for tensor in (hidden[:, :-1].flatten(0, 1), weight)
    )
    targets = labels[:, 1:].flatten()
    logits = x @ w.t()
    expected = F.cross_entropy(logits, targets, reduction="sum") / 40
    (d_logits,) = torch.autograd.grad(0.7 * expected, logits, retain_graph=True)
    d_x, d_w = torch.autograd.grad(0.7 * expected, (x, w))

    # Each logit is a sum of `width` products in float32 or wider, rounded once. That moves a
    # probability by a factor of at most exp(2 * error); its difference to 1 at the target, the two
    # products and their sums are each rounded once more.
    wide = ROUNDOFF[torch.promote_types(computed, torch.float32)]
    once = ROUNDOFF[computed] + ROUNDOFF[stored] + 2 * wide
    sizes = x.abs() @ w.abs().t()
    error = (ROUNDOFF[computed] * logits.abs() + width * wide * sizes).amax().item()
    counted = targets.ne(-100)
    _assert_near(
        loss, expected, (2 * error * counted.sum() + 1e3 * wide * expected.abs() * 40) / 40
    )
    probabilities = logits.softmax(-1) * (counted * 0.7 / 40).unsqueeze(-1)
    spread = torch.expm1(torch.tensor(2 * error + 64 * wide, dtype=torch.float64))
    d_error = spread * probabilities + 3 * once * d_logits.abs()
    sums = len(targets) + classes
    for got, want, left, right in (
        (d_hidden[:, :-1].flatten(0, 1), d_x, (d_error, d_logits.abs()), w.abs()),
        (d_weight, d_w, (d_error.t(), d_logits.abs().t()), x.abs()),
    ):
        _assert_near(got, want, left[0] @ right + (3 * once + sums * wide) * (left[1] @ right))
    assert not d_hidden[:, -1].any()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_a_step_without_logits_has_the_loss_and_gradients_of_one_with(autocast, tied):
    model = tiny(EREG, **STRONG).train()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    tokens = torch.randint(256, (4, 32))
    found = []
    for kept in (0, None):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            output = model(tokens, labels=tokens, logits_to_keep=kept)
        assert (output.logits is None) == (kept is None)
        output.loss.backward()
        found.append((output.loss.detach(), output.lm_loss.detach(), _gradients(model)))
    (loss, lm_loss, expected), (got, got_lm, actual) = found
    torch.testing.assert_close(got, loss)
    torch.testing.assert_close(got_lm, lm_loss)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        # Under autocast both round to bfloat16, at equal places up to the order of sums.
        close = {"rtol": 2**-6, "atol": 2**-7 * gradient.abs().max().item()}
        close = close if autocast else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(actual[name], gradient, **close, msg=name)


@pytest.mark.parametrize("autocast", [False, True])
def test_training_runs_without_logits_have_the_losses_of_runs_with(autocast):
    losses = {}
    for kept in (0, None):
        torch.manual_seed(0)
        model = tiny(EREG).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
        tokens = torch.arange(256).view(8, 32)
        losses[kept] = []
        for _ in range(30):
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                loss = model(tokens, labels=tokens, logits_to_keep=kept).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[kept].append(loss.item())
    assert losses[0][-1] < 0.95 * losses[0][0]
    # Rounding apart, which every step makes larger.
    assert losses[None] == pytest.approx(losses[0], rel=1e-2 if autocast else 1e-4)


class Largest(TorchDispatchMode):
    """The most elements that a tensor of a call had."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("grad", [True, False])
def test_the_logits_are_never_whole_in_memory(grad):
    hidden = torch.randn(4, 600, 8, requires_grad=True)
    weight = torch.randn(500, 8, requires_grad=True)
    labels = torch.randint(500, (4, 600))
    with Largest() as largest, torch.set_grad_enabled(grad):
        loss = head_loss(hidden, weight, labels)
    with largest:
        if grad:
            loss.backward()
    assert largest.elements < 4 * 600 * 500 / 2


@pytest.mark.parametrize("factor", [1.0, 0.25, 3.0])
def test_the_same_graph_gives_the_same_gradients_each_time(factor):
    hidden = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
    loss = head_loss(hidden, weight, torch.randint(9, (2, 5)))
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    scaled = torch.autograd.grad(factor * loss, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(loss, (hidden, weight))
    for one, other, third in zip(first, scaled, again, strict=True):
        torch.testing.assert_close(other, factor * one)
        torch.testing.assert_close(third, one)


def test_a_weight_that_changes_before_the_backward_pass_is_an_error_as_in_torch():
    weight = torch.randn(9, 8, requires_grad=True)
    loss = head_loss(torch.randn(2, 5, 8, requires_grad=True), weight, torch.randint(9, (2, 5)))
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_has_no_gradient(frozen):
    operands = {"hidden": torch.randn(2, 5, 8), "weight": torch.randn(9, 8)}
    trained = next(name for name in operands if name != frozen)
    operands[trained].requires_grad_()
    labels = torch.randint(9, (2, 5))
    head_loss(operands["hidden"], operands["weight"], labels).backward()
    logits = operands["hidden"][:, :-1].flatten(0, 1) @ operands["weight"].t()
    expected = F.cross_entropy(logits, labels[:, 1:].flatten())
    (want,) = torch.autograd.grad(expected, operands[trained])
    torch.testing.assert_close(operands[trained].grad, want)


@pytest.mark.parametrize("training", [True, False])
def test_where_nothing_is_predicted_the_loss_is_that_of_the_logits(training):
    model = tiny(EREG).train(training)
    tokens = torch.randint(256, (2, 8))
    nothing = torch.full_like(tokens, -100)
    whole, blocks = (model(tokens, labels=nothing, logits_to_keep=k).lm_loss for k in (0, None))
    torch.testing.assert_close(blocks, whole, equal_nan=True)
    blocks.backward()
    assert not any(gradient.any() for gradient in _gradients(model).values())


@pytest.mark.parametrize("case", ["hook", "replaced forward", "float16", "no gradient", "compiled"])
def test_heads_that_are_more_than_a_product_keep_what_they_do(case):
    model = tiny("SM+LN+G").train()
    tokens = torch.randint(256, (2, 16))
    head = model.lm_head
    if case == "hook":
        head.register_forward_hook(lambda _module, _inputs, logits: 2 * logits)
    elif case == "replaced forward":
        head.forward = lambda inputs: 3 * F.linear(inputs, head.weight)
    elif case == "float16":
        model.half()
    called = torch.compile(model, backend="eager") if case == "compiled" else model
    with torch.set_grad_enabled(case != "no gradient"):
        whole = called(tokens, labels=tokens)
        blocks = called(tokens, labels=tokens, logits_to_keep=None)
    assert blocks.logits is None
    torch.testing.assert_close(blocks.loss, whole.loss)
    assert blocks.loss.requires_grad == (case != "no gradient")


@pytest.mark.parametrize("wrong", [9, -1])
def test_labels_outside_the_vocabulary_are_an_error(wrong):
    hidden, weight = torch.randn(1, 3, 8, requires_grad=True), torch.randn(9, 8)
    labels = torch.tensor([[0, 1, wrong]])
    assert_refused(lambda: head_loss(hidden, weight, labels), "0 to V - 1 = 8", f"got {wrong}")


def test_a_call_without_labels_must_keep_logits():
    tokens = torch.zeros(1, 3, dtype=torch.long)
    assert_refused(lambda: tiny("SM")(tokens, logits_to_keep=None), "logits_to_keep", "None")
