import math

import pytest
import torch
import torch.nn.functional as F
from tests.python.refusals import assert_refused
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from aero import ops
from aero.models.head_penalty import penalty_of_heads
from aero.models.loss import next_token_loss, summed_cross_entropy

from .labels import tiny

EREG = "EReg(SM(t)+ScFuFFN)"
# A large weight, no margin: the penalty's part in every gradient is far above rounding.
STRONG = {"entropy_weight": 0.1, "tolerance_margin": 0.0, "temperature_init": 0.5}


def _gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _assert_same_gradients(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (200, 5000), (37, 7), (0, 5)])
def test_cross_entropy_equals_torch(dtype, rows, classes):
    logits = torch.randn(rows, classes, dtype=dtype, requires_grad=True)
    targets = torch.randint(classes, (rows,))
    targets[::3] = -100
    wide = logits.to(torch.promote_types(dtype, torch.float32))
    expected = F.cross_entropy(wide, targets, reduction="sum")
    actual = summed_cross_entropy(logits, targets)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    got, wanted = (torch.autograd.grad(0.3 * x, logits)[0] for x in (actual, expected))
    assert got.dtype == dtype
    torch.testing.assert_close(got, wanted)


def test_cross_entropy_of_a_view_equals_that_of_its_copy():
    columns = torch.randn(9, 40)[:, ::2].requires_grad_()
    copy = columns.detach().clone().requires_grad_()
    targets = torch.arange(9)
    losses = [summed_cross_entropy(x, targets) for x in (columns, copy)]
    assert losses[0] == losses[1]
    got, wanted = (
        torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, (columns, copy), strict=True)
    )
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("target", [5, -1])
def test_a_target_that_is_no_class_is_refused(target):
    targets = torch.tensor([0, -100, target])
    assert_refused(
        lambda: summed_cross_entropy(torch.zeros(3, 5), targets),
        "targets", "0 to V - 1 = 4", "-100", f"got {target}",
    )  # fmt: skip


def test_a_gradient_takes_the_place_of_rows_of_neighbours_alone():
    factors, targets = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    turn = torch.ops.aero.cross_entropy_gradient_
    assert_refused(lambda: turn(torch.zeros(5, 3).t(), targets, factors), "rows of neighbours")
    assert_refused(lambda: turn(torch.zeros(3, 5), targets, factors.double()), "factors", "float64")
    assert_refused(lambda: turn(torch.zeros(3, 5), targets[:2], factors), "targets", "[2]")


def test_cross_entropy_has_shapes_without_values():
    with FakeTensorMode():
        logits = torch.zeros(3, 5, dtype=torch.bfloat16, requires_grad=True)
        loss = summed_cross_entropy(logits, torch.zeros(3, dtype=torch.int64))
        loss.backward()
    assert loss.dtype == torch.float32 and logits.grad.dtype == torch.bfloat16


def test_loss_predicts_the_next_token():
    logits = torch.full((1, 3, 4), -30.0)
    tokens = torch.tensor([[2, 1, 3]])
    logits[0, 0, 1] = logits[0, 1, 3] = 30.0
    assert next_token_loss(logits, tokens).item() == pytest.approx(0.0, abs=1e-6)
    assert next_token_loss(logits, torch.tensor([[2, -100, 3]])).item() < 1e-6


@pytest.mark.filterwarnings("error")
def test_the_loss_warns_of_nothing():
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    loss = next_token_loss(logits, torch.tensor([[0, 1, 2]]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(4))


def test_loss_is_the_mean_over_counted_tokens_or_the_given_number():
    model = tiny("SM+LN+G").eval()
    tokens = torch.randint(256, (2, 16))
    labels = tokens.clone()
    labels[1, 5:] = -100
    output = model(tokens, labels=labels)
    log_probabilities = output.logits[:, :-1].log_softmax(-1)
    nll = -log_probabilities.gather(-1, tokens[:, 1:, None])[..., 0]
    expected = nll[labels[:, 1:] != -100]
    torch.testing.assert_close(output.loss, expected.mean())
    torch.testing.assert_close(
        model(tokens, labels=labels, num_items_in_batch=40).loss, expected.sum() / 40
    )


def test_training_loss_is_lm_loss_plus_weighted_penalty_and_evaluation_loss_is_lm_loss():
    model = tiny(EREG, **STRONG)
    tokens = torch.randint(256, (2, 32))
    output = model.train()(tokens, labels=tokens)
    torch.testing.assert_close(output.loss, output.lm_loss + 0.1 * output.entropy_loss)
    expected = ops.entropy_regularization(
        output.entropies, torch.full((2, 2), 0.5), margin=0.0, context_length=32
    )
    # 2 rows of 31 predicted tokens; a row's penalty weighs 0.1 * 128 * 127 tokens' cross entropy.
    expected = expected * 128 * 127 / 62
    torch.testing.assert_close(output.entropy_loss, expected)
    evaluated = model.eval()(tokens, labels=tokens)
    torch.testing.assert_close(evaluated.loss, evaluated.lm_loss)
    torch.testing.assert_close(evaluated.entropy_loss, expected)
    assert model(tokens).loss is None


def test_entropies_are_those_of_the_attention_weights():
    model = tiny("SM+LN+G").eval()
    tokens = torch.randint(256, (2, 32))
    entropies = model(tokens).entropies
    block = model.transformer.blocks()[0]
    hidden = block.ln_1(model(tokens, output_hidden_states=True).hidden_states[0])
    query, key, _ = (
        x.unflatten(-1, (2, 16)).transpose(1, 2) for x in block.attn.c_attn(hidden).chunk(3, -1)
    )
    mask = torch.ones(32, 32, dtype=torch.bool).tril()
    weights = (query @ key.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(entropies[0], -torch.xlogy(weights, weights).sum(-1))
    assert len(entropies) == 2


@pytest.mark.parametrize("max_entropy", ["log_context", "log_visible"])
@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_neither_loss_nor_gradient(reduction, max_entropy, side):
    model = tiny(EREG, entropy_reduction=reduction, max_entropy=max_entropy, **STRONG).train()
    tokens = torch.randint(256, (2, 12))
    model(tokens, labels=tokens).loss.backward()
    expected = _gradients(model)
    model.zero_grad()

    padding = torch.full((2, 5), 7)
    first, last = (padding, tokens) if side == "left" else (tokens, padding)
    padded = torch.cat((first, last), dim=1)
    real = torch.arange(17) >= 5 if side == "left" else torch.arange(17) < 12
    mask = real.long().expand(2, -1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    labels = padded.masked_fill(mask == 0, -100)
    if side == "left":
        # The first real token would otherwise be predicted from padding.
        labels[:, 5] = -100
    model(padded, attention_mask=mask, position_ids=positions, labels=labels).loss.backward()
    _assert_same_gradients(_gradients(model), expected)


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
@pytest.mark.parametrize("steps", [2, 4])
def test_gradients_do_not_depend_on_accumulation(reduction, steps):
    model = tiny(EREG, entropy_reduction=reduction, **STRONG).train()
    tokens = torch.randint(256, (8, 32))
    num_items = tokens[:, 1:].numel()
    model(tokens, labels=tokens, num_items_in_batch=num_items).loss.backward()
    expected = _gradients(model)
    model.zero_grad()
    for part in tokens.chunk(steps):
        model(part, labels=part, num_items_in_batch=torch.tensor(num_items)).loss.backward()
    _assert_same_gradients(_gradients(model), expected)


def test_position_sum_does_not_depend_on_accumulation_with_ragged_labels():
    model = tiny(EREG, **STRONG).train()
    tokens = torch.randint(256, (4, 32))
    labels = tokens.clone()
    labels[0, 3:] = -100
    num_items = int(labels[:, 1:].ne(-100).sum())
    model(tokens, labels=labels, num_items_in_batch=num_items).loss.backward()
    expected = _gradients(model)
    model.zero_grad()
    for i in range(4):
        part = slice(i, i + 1)
        model(tokens[part], labels=labels[part], num_items_in_batch=num_items).loss.backward()
    _assert_same_gradients(_gradients(model), expected)


def test_trainer_accumulates_to_the_gradient_of_one_batch(tmp_path):
    from transformers import Trainer

    from ..train.two_processes import one_step

    tokens = torch.randint(256, (8, 32))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    weights = {}
    for batch, steps in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        model = tiny(EREG, **STRONG)
        Trainer(model, one_step(tmp_path, batch, steps), train_dataset=data).train()
        weights[steps] = {name: p.detach().clone() for name, p in model.named_parameters()}
    _assert_same_gradients(weights[4], weights[1])


def test_autocast_trains_in_bfloat16_with_float32_statistics():
    for label in (EREG, "SM+FN+ScFuFFN", "SM+LN+G", "SOTA:SM+ScFFN"):
        model = tiny(label).train()
        tokens = torch.randint(256, (4, 32))
        with torch.autocast("cpu", torch.bfloat16):
            output = model(tokens, labels=tokens)
        assert output.entropies[0].dtype == torch.float32
        assert output.loss.dtype == torch.float32
        output.loss.backward()
        exact = model(tokens, labels=tokens).lm_loss
        torch.testing.assert_close(output.lm_loss, exact, rtol=0.01, atol=0)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("label", [EREG, "SM+FN+ScFuFFN", "SM+LN+G", "SM+ScFFN"])
def test_under_autocast_the_residual_stream_stays_float32(label):
    tokens = torch.randint(256, (4, 32))
    with torch.autocast("cpu", torch.bfloat16):
        output = tiny(label).train()(tokens, output_hidden_states=True)
    assert output.logits.dtype == torch.bfloat16
    assert {hidden.dtype for hidden in output.hidden_states} == {torch.float32}


@pytest.mark.parametrize("label", [EREG, "SM+FN+ScFuFFN", "SM+FN(scalar)+R", "SM+LN+G", "SM+ScFFN"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_whole_models_run_in_other_dtypes(label, dtype):
    model = tiny(label)
    tokens = torch.randint(256, (4, 32))
    exact = model.train()(tokens, labels=tokens).lm_loss
    output = model.to(dtype)(tokens, labels=tokens)
    assert output.logits.dtype == dtype
    torch.testing.assert_close(output.lm_loss.float(), exact, rtol=0.01, atol=0)
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.eval()(tokens).logits.isfinite().all()


def test_prediction_gathers_logits_only(tmp_path):
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": row, "labels": row} for row in torch.randint(256, (4, 32))]
    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(tiny(EREG), arguments, eval_dataset=data)
    prediction = trainer.predict(data)
    assert prediction.predictions.shape == (4, 32, 256)
    assert prediction.metrics["test_loss"] == pytest.approx(5.545, abs=0.05)


def test_no_cache_is_filled_for_a_loss():
    model = tiny(EREG).eval()
    tokens = torch.randint(256, (2, 8))
    assert model(tokens, labels=tokens).past_key_values is None
    assert model(tokens).past_key_values is not None
    assert model.train()(tokens).past_key_values is None


@pytest.mark.parametrize("strength_bias", [None, torch.zeros(3, 2)])
def test_layers_of_the_same_keys_are_penalized_without_a_copy_of_their_thresholds(strength_bias):
    entropies = [torch.rand(2, 2, 5, requires_grad=True) for _ in range(3)]
    thresholds = torch.rand(3, 2, requires_grad=True)
    rule = {"margin": 0.0, "max_entropy": "log_context", "reduction": "position_sum"}
    rule["context_length"] = None
    found = {}
    for name, keys in {"none": None, "one": [torch.arange(1, 6).expand(2, 5)] * 3}.items():
        recorded = Recorded()
        with recorded:
            value = penalty_of_heads(
                entropies, thresholds, strength_bias, visible_keys=keys, **rule
            )
        # Reading a list of layers would be an index, which a GPU waits for.
        assert not recorded.names & {"aten.index.Tensor", "aten.lift_fresh.default"}
        found[name] = (value, *torch.autograd.grad(value, (*entropies, thresholds)))
    by_layer = [torch.arange(1, 6).expand(2, 5).clone() for _ in range(3)]
    value = penalty_of_heads(entropies, thresholds, strength_bias, visible_keys=by_layer, **rule)
    found["each"] = (value, *torch.autograd.grad(value, (*entropies, thresholds)))
    torch.testing.assert_close(found["none"], found["each"])
    torch.testing.assert_close(found["one"], found["each"])


class Recorded(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))
