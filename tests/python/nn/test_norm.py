import math

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch.utils.checkpoint import checkpoint

from aero.nn import FoldableNorm
from aero.nn.norm import DynamicNorm


def test_training_output_has_unit_mean_square_in_every_channel():
    x = torch.randn(4, 7, 5, dtype=torch.float64) * torch.tensor([0.1, 1.0, 2.0, 30.0, 400.0])
    y = FoldableNorm(5).double()(x)
    expected = torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(y.square().mean(dim=(0, 1)), expected, atol=0, rtol=1e-3)


def test_scalar_kind_has_one_statistic_and_keeps_the_ratio_of_channels():
    norm = FoldableNorm(3, kind="scalar").double()
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    y = norm(x)
    assert norm.running_mean_square.shape == (1,)
    torch.testing.assert_close(y / x, (y / x)[:1, :1, :1].expand_as(x))
    torch.testing.assert_close(y.square().mean().item(), 1.0, atol=0, rtol=1e-5)


def test_running_value_moves_by_the_larger_of_a_fiftieth_and_one_nth():
    norm = FoldableNorm(2)
    expected = torch.ones(2)
    for n in range(1, 61):
        x = torch.randn(3, 5, 2) * (1 + n / 10)
        norm(x)
        expected += max(0.02, 1 / n) * (x.square().mean(dim=(0, 1)) - expected)
    assert norm.num_updates.item() == 60
    torch.testing.assert_close(norm.running_mean_square, expected)


def test_evaluation_uses_the_running_value_and_changes_nothing():
    norm = FoldableNorm(4).double()
    norm(torch.randn(3, 5, 4, dtype=torch.float64))
    torch.nn.init.normal_(norm.weight)
    norm.eval()
    before = norm.running_mean_square.clone()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    expected = norm.weight * x / (before + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), expected)
    assert norm.num_updates.item() == 1
    assert torch.equal(norm.running_mean_square, before)


@pytest.mark.parametrize("kind", ["channel", "scalar"])
def test_masked_tokens_are_not_in_the_statistics(kind):
    mask = torch.tensor([[True, True, False, True], [False, False, True, True]])
    x = torch.randn(2, 4, 3)
    poisoned = torch.where(mask.unsqueeze(-1), x, torch.tensor(1e6))
    norm = FoldableNorm(3, kind=kind)
    other = FoldableNorm(3, kind=kind)
    y = norm(poisoned, mask)
    torch.testing.assert_close(y[mask], other(x[mask].unsqueeze(0))[0])
    torch.testing.assert_close(norm.running_mean_square, other.running_mean_square)


def test_a_call_without_a_counted_token_changes_nothing():
    norm = FoldableNorm(3)
    norm(torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.bool))
    assert norm.num_updates.item() == 0
    assert norm.running_mean_square.tolist() == [1, 1, 1]
    norm(torch.empty(0, 4, 3))
    assert norm.num_updates.item() == 0


@pytest.mark.parametrize("kind", ["channel", "scalar"])
def test_gradient_reaches_the_statistics(kind):
    norm = FoldableNorm(3, kind=kind).double()
    mask = torch.tensor([[True, False], [True, True]])
    x = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x, weight: norm(x, mask), (x, norm.weight))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputing_a_checkpoint_updates_once(use_reentrant):
    x = torch.randn(2, 4, 3, requires_grad=True)
    plain, checkpointed = FoldableNorm(3), FoldableNorm(3)
    plain(x).pow(3).sum().backward()
    expected, x.grad = x.grad, None
    checkpoint(checkpointed, x, use_reentrant=use_reentrant).pow(3).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert checkpointed.num_updates.item() == 1
    torch.testing.assert_close(checkpointed.running_mean_square, plain.running_mean_square)


def test_discrepancy_compares_the_batch_with_the_running_value_before_it():
    norm = FoldableNorm(2)
    norm(torch.full((2, 3, 2), 2.0))
    assert norm.discrepancy.item() == 0
    norm(torch.full((2, 3, 2), 3.0))
    assert norm.discrepancy.item() == pytest.approx(0.5, rel=1e-5)


def test_discrepancy_is_not_saved_and_the_average_is():
    assert sorted(FoldableNorm(2).state_dict()) == ["num_updates", "running_mean_square", "weight"]


def test_bfloat16_input_keeps_its_dtype_and_float32_statistics():
    norm = FoldableNorm(3)
    x = torch.randn(2, 64, 3)
    y = norm(x.bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(
        norm.running_mean_square, x.bfloat16().float().square().mean(dim=(0, 1))
    )


@pytest.mark.parametrize("kind", ["tanh", "erf"])
@pytest.mark.parametrize("shape", [(2, 7, 5), (1, 1, 1), (0, 3, 5), (3, 0, 5)])
def test_dynamic_norms_are_the_published_formulas(kind, shape):
    torch.manual_seed(0)
    norm = DynamicNorm(shape[-1], kind=kind).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn_like(parameter)
    x = 3 * torch.randn(shape, dtype=torch.float64).transpose(0, 1)
    own = {name: value.detach().numpy() for name, value in norm.named_parameters()}
    if kind == "tanh":
        squashed = np.tanh(own["alpha"] * x.numpy())
    else:
        inner = own["alpha"] * x.numpy() + own["shift"]
        squashed = np.vectorize(math.erf, otypes=[float])(inner)
    expected = own["weight"] * squashed + own["bias"]
    for mode in (norm.train(), norm.eval()):
        np.testing.assert_allclose(mode(x).detach().numpy(), expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("kind", ["tanh", "erf"])
def test_dynamic_norms_have_the_gradients_of_their_formulas(kind):
    norm = DynamicNorm(3, kind=kind).double()
    inputs = [torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True), *norm.parameters()]
    names = [name for name, _ in norm.named_parameters()]

    def function(x, *values):
        return torch.func.functional_call(norm, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, inputs)


def test_dynamic_norms_start_as_published_and_only_erf_has_a_shift():
    starts = {"alpha": [0.5], "weight": [1.0, 1.0], "bias": [0.0, 0.0]}
    for kind, extra in (("tanh", {}), ("erf", {"shift": [0.0]})):
        state = DynamicNorm(2, kind=kind).state_dict()
        assert {name: value.tolist() for name, value in state.items()} == starts | extra
    with pytest.raises(ValueError, match="kind must be 'tanh' or 'erf', got 'cosh'"):
        DynamicNorm(3, kind="cosh")


def _synchronized_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    x = torch.load(f"{folder}/x.pt")[rank].requires_grad_()
    norm = FoldableNorm(3, synchronized=True).double()
    norm(x).pow(3).sum().backward()
    torch.save((norm.running_mean_square, x.grad), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_synchronized_statistics_over_two_processes_are_those_of_one(tmp_path, fork_server):
    x = torch.randn(2, 2, 4, 3, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    processes = [
        fork_server.Process(target=_synchronized_process, args=(rank, str(tmp_path)))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    whole = x.clone().requires_grad_()
    norm = FoldableNorm(3).double()
    norm(whole.view(4, 4, 3)).pow(3).sum().backward()
    for rank in range(2):
        running, gradient = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(running, norm.running_mean_square)
        torch.testing.assert_close(gradient, whole.grad[rank])
