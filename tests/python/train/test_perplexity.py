import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from aero.models import AeroConfig, AeroForCausalLM
from aero.train.data.windows import validation_windows
from aero.train.runs.perplexity import HeldOutLoss, measure_loss
from aero.train.runs.run_results import validation_measure

VOCABULARY = 16


class ConstantModel(nn.Module):
    """Gives every token the same distribution, whatever came before."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.modes = []

    def forward(self, input_ids, use_cache):
        self.modes.append(self.training)
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def measure(model, tokens, context, **options):
    starts = validation_windows(
        tokens, context, max_tokens=options.pop("max_tokens", None), stride=options.get("stride")
    )
    token_bytes = options.pop("token_bytes", np.ones(VOCABULARY, dtype=np.int64))
    return measure_loss(
        model,
        tokens,
        starts,
        token_bytes=token_bytes,
        context_length=context,
        batch_tokens=options.pop("batch_tokens", 50),
        **options,
    )


@pytest.fixture
def tokens():
    return np.random.default_rng(0).integers(VOCABULARY, size=203).astype(np.uint16)


def test_uniform_prediction_has_the_vocabulary_as_perplexity(tokens):
    measured = measure(ConstantModel(torch.zeros(VOCABULARY)), tokens, 10)
    assert measured.tokens == 20 * 9
    assert measured.perplexity == pytest.approx(VOCABULARY, rel=1e-6)
    assert measured.bits_per_byte == pytest.approx(4.0, rel=1e-6)


def test_only_predicted_tokens_count_with_their_own_bytes(tokens):
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))
    token_bytes = np.arange(VOCABULARY)
    measured = measure(ConstantModel(logits), tokens, 10, token_bytes=token_bytes)
    targets = tokens[:200].reshape(20, 10)[:, 1:].ravel()
    nll = -torch.log_softmax(logits.double(), 0)[torch.from_numpy(targets.astype(int))]
    # float32 logits: relative error of one log-softmax about 1e-7.
    assert measured.nll == pytest.approx(nll.sum().item(), rel=1e-6)
    assert measured.bytes == targets.sum()
    assert measured.loss == pytest.approx(nll.mean().item(), rel=1e-6)


@pytest.mark.parametrize("stride", [1, 4, 9, 10])
def test_strided_windows_count_every_later_token_once(stride, tokens):
    token_bytes = 1 << np.arange(VOCABULARY)
    measured = measure(
        ConstantModel(torch.zeros(VOCABULARY)), tokens, 10, stride=stride, token_bytes=token_bytes
    )
    if stride == 10:  # disjoint windows: each loses its first token
        assert measured.tokens == 20 * 9
        return
    covered = (203 - 10) // stride * stride + 10
    assert measured.tokens == covered - 1
    assert measured.bytes == token_bytes[tokens[1:covered]].sum()


def test_strided_windows_give_tokens_more_context_and_the_same_loss_for_the_first_window(tokens):
    torch.manual_seed(0)
    config = AeroConfig.from_label(
        "SM+LN+G", model="tiny", vocab_size=VOCABULARY, context_length=10
    )
    model = AeroForCausalLM(config).eval()
    ids = torch.from_numpy(tokens[:14].astype(np.int64))
    with torch.no_grad():
        first = torch.log_softmax(model(ids[None, :10]).logits[0].double(), -1)
        second = torch.log_softmax(model(ids[None, 4:14]).logits[0].double(), -1)
    expected = (
        -first[torch.arange(9), ids[1:10]].sum() - second[torch.arange(5, 9), ids[10:14]].sum()
    )
    measured = measure(model, tokens[:14], 10, stride=4)
    assert measured.tokens == 13
    assert measured.nll == pytest.approx(expected.item(), rel=1e-6)


def test_the_batch_size_does_not_matter_and_the_mode_is_restored(tokens):
    model = ConstantModel(torch.randn(VOCABULARY))
    first = measure(model, tokens, 10, batch_tokens=1)
    second = measure(model, tokens, 10, batch_tokens=10_000)
    assert first.nll == pytest.approx(second.nll, rel=1e-12)
    assert model.training and not any(model.modes)


def test_the_measure_is_the_models_own_loss(tokens):
    torch.manual_seed(0)
    config = AeroConfig.from_label(
        "SM+FN+R", model="tiny", vocab_size=VOCABULARY, context_length=10
    )
    model = AeroForCausalLM(config).eval()
    ids = torch.from_numpy(tokens[:200].astype(np.int64)).view(20, 10)
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.item()
    # The model sums in float32.
    assert measure(model, tokens, 10).loss == pytest.approx(expected, rel=1e-5)


def test_sums_do_not_lose_digits():
    # 2^24 + 1 is where float32 stops counting.
    measured = HeldOutLoss(nll=float(2**24 + 1), tokens=2**24 + 1, bytes=1)
    assert measured.loss == 1.0 and measured.perplexity == math.e


def test_a_diverged_network_has_no_finite_perplexity(tokens):
    measured = measure(ConstantModel(torch.full((VOCABULARY,), math.nan)), tokens, 10)
    assert math.isnan(measured.loss) and math.isnan(measured.perplexity)
    assert HeldOutLoss(1e6, 1, 1).perplexity == math.inf
    assert math.isnan(HeldOutLoss(1.0, 1, 0).bits_per_byte)
    assert math.isnan(HeldOutLoss(0.0, 0, 0).perplexity)


@pytest.mark.parametrize(("starts", "context"), [([0, 1], 1), ([], 10)])
def test_windows_that_predict_no_token_are_refused(tokens, starts, context):
    with pytest.raises(ValueError, match=f"{len(starts)} windows of {context} tokens"):
        measure_loss(
            ConstantModel(torch.zeros(VOCABULARY)),
            tokens,
            np.array(starts, dtype=np.int64),
            token_bytes=np.ones(VOCABULARY, dtype=np.int64),
            context_length=context,
            batch_tokens=50,
        )


def test_the_interval_over_documents_is_that_of_a_ratio_of_sums():
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))
    generator, mark = np.random.default_rng(1), VOCABULARY - 1
    # The last document has no mark; windows of 10 end within documents.
    parts = [
        np.append(generator.integers(mark, size=size), [mark] * (size != 60))
        for size in (30, 7, 90, 1, 60)
    ]
    tokens = np.concatenate(parts).astype(np.uint16)
    document = np.repeat(np.arange(5), [len(part) for part in parts])
    measured = measure(ConstantModel(logits), tokens, 10, end_mark=mark)
    nll = -torch.log_softmax(logits.double(), 0).numpy()
    windows = len(tokens) // 10
    counted = np.arange(windows * 10) % 10 > 0
    kept, of = tokens[: windows * 10][counted].astype(int), document[: windows * 10][counted]
    # Each document left out once: its influence on the mean, to first order.
    mean = nll[kept].mean()
    influence = [(nll[kept][of == d] - mean).sum() / len(kept) for d in range(5)]
    error = math.sqrt(5 / 4 * np.square(influence).sum())
    assert measured.document_tokens == tuple(np.bincount(of).tolist())
    assert measured.document_nll == pytest.approx(np.bincount(of, nll[kept]), rel=1e-5)
    # Student's t of four degrees of freedom at 2.5 %.
    low, high = measured.perplexity_interval
    assert (low, high) == pytest.approx(
        (math.exp(mean - 2.7764 * error), math.exp(mean + 2.7764 * error)), rel=1e-4
    )
    same = measure(ConstantModel(logits), tokens, 10, end_mark=mark, batch_tokens=10)
    assert same.perplexity_interval == pytest.approx((low, high))


def test_one_document_or_no_marks_have_no_interval(tokens):
    model = ConstantModel(torch.zeros(VOCABULARY))
    assert measure(model, tokens, 10).perplexity_interval is None
    alone = measure(model, np.zeros(50, dtype=np.uint16), 10, end_mark=3)
    assert len(alone.document_nll) == 1 and alone.perplexity_interval is None


def test_networks_are_measured_on_the_same_validation_tokens():
    config = AeroConfig.from_label("SM", model="tiny", context_length=16)
    model = AeroForCausalLM(config).eval()
    text = np.random.default_rng(0).integers(256, size=160).astype(np.uint16)
    data = SimpleNamespace(validation=text, token_bytes=np.ones(256, dtype=np.int64))
    expected = measure_loss(
        model,
        text,
        validation_windows(text, 16, max_tokens=64),
        token_bytes=data.token_bytes,
        context_length=16,
        batch_tokens=16,
    )
    found = validation_measure(data, max_tokens=64)(model)
    assert found == pytest.approx(expected.loss) and found == pytest.approx(math.log(256), abs=0.5)
    assert expected.tokens < len(text) - 1


class CopyingModel(nn.Module):
    """Gives half of its probability to what followed the last token's latest earlier occurrence."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache):
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        for row, window in enumerate(input_ids.tolist()):
            for at in range(1, len(window)):
                earlier = [p for p in range(at) if window[p] == window[at]]
                if earlier:
                    logits[row, at, window[earlier[-1] + 1]] = math.log(VOCABULARY - 1)
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("stride", [None, 4])
@pytest.mark.parametrize("batch_tokens", [10, 64])
def test_loss_is_told_apart_by_position_and_by_repeated_bigrams(tokens, stride, batch_tokens):
    context, model = 10, CopyingModel()
    starts = validation_windows(tokens, context, max_tokens=None, stride=stride)
    measured = measure(model, tokens, context, stride=stride, batch_tokens=batch_tokens)
    by_position, repeated = np.zeros((2, context - 1)), np.zeros(2)
    for start in starts.tolist():
        window = tokens[start : start + context].astype(np.int64)
        logits = model(torch.from_numpy(window)[None], False).logits[0].double()
        seen = set()
        for at in range(1, context):
            pair = (int(window[at - 1]), int(window[at]))
            if stride is None or start == 0 or at >= context - stride:
                nll = -torch.log_softmax(logits[at - 1], -1)[window[at]].item()
                by_position[:, at - 1] += nll, 1
                if pair in seen:
                    repeated += nll, 1
            seen.add(pair)
    found = measured.context
    np.testing.assert_allclose(found.position_nll, by_position[0], rtol=1e-6)
    np.testing.assert_array_equal(found.position_tokens, by_position[1])
    assert found.repeated_nll == pytest.approx(repeated[0], rel=1e-6)
    assert found.repeated_tokens == repeated[1] > 0
    assert sum(found.position_nll) == pytest.approx(measured.nll, rel=1e-12)
    assert found.loss_on_repeated < found.loss_on_new
