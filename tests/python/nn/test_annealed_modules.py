import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from aero.nn import FeedForward, FoldableNorm
from aero.nn.annealed_modules import (
    AnnealedFeedForward,
    AnnealedNorm,
    annealing_progress,
    set_annealing_progress,
)


def norm(target="foldable"):
    source = nn.LayerNorm(5)
    nn.init.normal_(source.weight)
    nn.init.normal_(source.bias)
    return AnnealedNorm(source, FoldableNorm(5) if target == "foldable" else None).double()


@pytest.mark.parametrize("target", ["foldable", "none"])
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_a_norm_is_the_mean_of_both_weighted_by_progress(target, progress):
    made = norm(target)
    set_annealing_progress(made, progress)
    x = 3 * torch.randn(4, 7, 5, dtype=torch.float64) + 1
    new = x if target == "none" else x / (x.square().mean(dim=(0, 1)) + 1e-6).sqrt()
    expected = (1 - progress) * made.source(x) + progress * new
    torch.testing.assert_close(made(x), expected)
    if progress in (0.0, 1.0):  # float32 progress: only the ends are exact
        assert torch.allclose(made(x), expected, rtol=1e-14)


@pytest.mark.parametrize("target", ["foldable", "none"])
def test_the_end_depends_on_the_new_norm_alone(target):
    made = norm(target)
    set_annealing_progress(made, 1.0)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    made(x).square().sum().backward()
    assert not made.source.weight.grad.any() and not made.source.bias.grad.any()
    nn.init.constant_(made.source.weight, 1e9)
    expected = x if target == "none" else FoldableNorm(5).double()(x)
    assert torch.equal(made(x), expected)


def test_masked_tokens_are_not_in_the_new_statistics():
    made = norm()
    set_annealing_progress(made, 0.5)
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [False, False, True, True]])
    poisoned = torch.where(mask.unsqueeze(-1), x, 1e6)
    made(poisoned, mask)
    plain = FoldableNorm(5).double()
    plain(x[mask].unsqueeze(0))
    torch.testing.assert_close(made.target.running_mean_square, plain.running_mean_square)


def test_recomputing_moves_the_statistics_once():
    made = norm()
    set_annealing_progress(made, 0.5)
    x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    checkpoint(made, x, use_reentrant=False).sum().backward()
    assert made.target.num_updates.item() == 1


@pytest.mark.parametrize("source", ["gelu", "relu", "linear"])
@pytest.mark.parametrize("target", ["gelu", "relu", "linear"])
@pytest.mark.parametrize("approximation", ["tanh", "none"])
def test_a_feed_forward_goes_from_one_activation_to_the_other(source, target, approximation):
    made = AnnealedFeedForward(
        4, 12, source=source, target=target, gelu_approximation=approximation
    ).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    functions = {
        "gelu": lambda h: F.gelu(h, approximate=approximation),
        "relu": F.relu,
        "linear": lambda h: h,
    }
    hidden = made.c_fc(x)
    for progress in (0.0, 0.25, 1.0):  # exact in float32
        set_annealing_progress(made, progress)
        mixed = (1 - progress) * functions[source](hidden) + progress * functions[target](hidden)
        torch.testing.assert_close(made(x), made.c_proj(mixed), rtol=1e-12, atol=1e-12)


def test_a_feed_forward_starts_as_the_plain_one():
    plain = FeedForward(4, 12, "gelu")
    made = AnnealedFeedForward(4, 12, source="gelu", target="linear", trainable=("alpha", "beta"))
    made.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(made.scaled(x, x), x + plain(x))
    assert made.alpha.requires_grad and made.beta.requires_grad


def test_a_pruned_feed_forward_fades_away():
    made = AnnealedFeedForward(4, 12, source="gelu", target=None)
    x = torch.randn(2, 3, 4)
    whole = made(x)
    set_annealing_progress(made, 0.75)
    torch.testing.assert_close(made(x), 0.25 * whole)
    set_annealing_progress(made, 1.0)
    assert torch.equal(made.scaled(x, x), x)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_bfloat16_stays_bfloat16(progress):
    made = norm().float()
    set_annealing_progress(made, progress)
    x = torch.randn(2, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(x.bfloat16()).dtype == torch.bfloat16
    ffn = AnnealedFeedForward(4, 8, source="gelu", target="linear").bfloat16()
    assert ffn(torch.randn(1, 2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_progress_is_saved_and_the_least_advanced_part_counts():
    parts = nn.ModuleList([norm(), AnnealedFeedForward(4, 8, source="gelu", target="linear")])
    assert annealing_progress(parts) == 0.0
    set_annealing_progress(parts, 0.5)
    other = nn.ModuleList([norm(), AnnealedFeedForward(4, 8, source="gelu", target="linear")])
    other.load_state_dict(parts.state_dict())
    assert annealing_progress(other) == 0.5
    set_annealing_progress(parts[0], 1.0)
    assert annealing_progress(parts) == 0.5
    assert annealing_progress(nn.Linear(2, 2)) is None
