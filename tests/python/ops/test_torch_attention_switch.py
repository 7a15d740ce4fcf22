"""When this library's kernels take the place of torch's, and under which of torch's transforms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aero.ops.torch_attention import accelerate

from .torch_calls import OURS, attended, errors, exact, kernels_of_torch, operands, ran


@pytest.fixture(autouse=True)
def _torchs_kernels_are_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Threads that tqdm and earlier tests leave are in no attention.
    monkeypatch.setattr(threading, "active_count", lambda: 1 + len(attending()))
    with accelerate():
        pass
    before = kernels_of_torch()
    yield
    assert kernels_of_torch() == before


def attending() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "attending"]


def test_torchs_own_kernels_are_back_after_the_block_and_its_results_bitwise() -> None:
    inputs, before = operands(), kernels_of_torch()
    theirs = attended(inputs, is_causal=True)
    with accelerate():
        assert len(kernels_of_torch()) > len(before)
    assert kernels_of_torch() == before
    for own, other in zip(attended(inputs, is_causal=True), theirs, strict=True):
        assert torch.equal(own, other)


def test_a_call_lasts_until_it_is_removed_and_repeating_either_is_harmless() -> None:
    inputs = operands()

    def run() -> set[str]:
        return ran(lambda: attended(inputs, is_causal=True))

    first, second = accelerate(), accelerate()
    first.remove()
    first.remove()
    assert run() == OURS
    second.remove()
    assert run() == set()


def test_blocks_nest_also_with_one_object_and_end_with_an_error() -> None:
    inputs = operands()

    def run() -> set[str]:
        return ran(lambda: attended(inputs, is_causal=True))

    with accelerate() as outer:
        with pytest.raises(KeyError), accelerate():
            raise KeyError
        assert run() == OURS
        with outer:
            pass
        assert run() == OURS
    assert run() == set()
    with outer:
        assert run() == OURS
    assert run() == set()


def test_other_threads_attend_while_it_begins_and_ends() -> None:
    inputs, before = operands(queries=7, keys=7), kernels_of_torch()
    want = attended(inputs, is_causal=True)
    found: list[list[Tensor]] = []
    is_done = threading.Event()

    def attend() -> None:
        own = [x.detach().requires_grad_() for x in inputs]
        while not is_done.is_set():
            found.append(attended(own, is_causal=True))

    with accelerate():  # torch cannot register kernels beside calls
        threads = [threading.Thread(target=attend, name="attending") for _ in range(2)]
        for thread in threads:
            thread.start()
    while len(found) < 200:
        with accelerate():
            pass
    # Torch may not change its kernels beside calls: ours stay, and hand calls on to torch's.
    assert kernels_of_torch()[0].split(" :: ")[0] != before[0].split(" :: ")[0]
    is_done.set()
    for thread in threads:
        thread.join()
    with accelerate():  # its end finds no other thread
        pass
    for results in found:
        for got, other in zip(results, want, strict=True):
            torch.testing.assert_close(got, other, rtol=1e-5, atol=1e-5)


def test_an_acceleration_that_began_in_one_thread_holds_in_all_and_ends_in_any() -> None:
    inputs = operands()
    begun = accelerate()
    results: list[Tensor] = []

    def attend() -> None:
        results.extend(attended(inputs, is_causal=True))

    thread = threading.Thread(target=attend, name="attending")
    assert ran(lambda: (thread.start(), thread.join())) <= OURS
    for own, other in zip(results, attended(inputs, is_causal=True), strict=True):
        assert torch.equal(own, other)
    thread = threading.Thread(target=begun.remove, name="attending")
    thread.start()
    thread.join()
    assert ran(lambda: attended(inputs, is_causal=True)) == set()
    with accelerate():
        pass


def test_checkpoints_compute_it_again() -> None:
    inputs = operands()
    want = attended(inputs, is_causal=True)
    with accelerate():
        out = checkpoint(
            lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
            *inputs, use_reentrant=False,
        )  # fmt: skip
        cotangent = torch.linspace(-1, 1, out.numel()).view_as(out)
        gradients = torch.autograd.grad(out, inputs, cotangent)
    torch.testing.assert_close([*gradients], want[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_runs_without_gradients(mode: Callable[[], Any]) -> None:
    q, k, v = operands()
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True).detach()
    with mode(), accelerate():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert ran(lambda: F.scaled_dot_product_attention(q, k, v)) == OURS - {
            "aero::attention_entropy_backward"
        }
    torch.testing.assert_close(out, want)


def test_autocast_casts_for_it() -> None:
    inputs = operands()
    results: list[Tensor] = []
    with accelerate(), torch.autocast("cpu", torch.bfloat16):
        assert ran(lambda: results.extend(attended(inputs, is_causal=True))) == OURS
    assert [x.dtype for x in results] == [torch.bfloat16, *[torch.float32] * 3]
    for error in errors(results, exact(inputs, is_causal=True)):
        assert error < 4 * torch.finfo(torch.bfloat16).eps


def test_second_derivatives_are_refused_as_torchs_are() -> None:
    inputs = operands()

    def twice() -> None:
        out = F.scaled_dot_product_attention(*inputs, is_causal=True)
        (gradient,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
        torch.autograd.grad(gradient.sum(), inputs[0])

    with pytest.raises(RuntimeError) as theirs:
        twice()
    with accelerate(), pytest.raises(RuntimeError) as ours:
        twice()
    assert str(ours.value) == str(theirs.value)


def test_vmap_gives_the_same() -> None:
    q, k, v = (x.detach() for x in operands())
    stacked = [torch.stack((x, 2 * x)) for x in (q, k, v)]

    def attend(*x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*x, is_causal=True)

    want = torch.func.vmap(attend)(*stacked)
    with accelerate():
        torch.testing.assert_close(torch.func.vmap(attend)(*stacked), want, rtol=1e-4, atol=1e-5)


def test_a_multihead_attention_calls_it_where_it_trains_and_not_on_its_fast_path() -> None:
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    with accelerate():
        trained = ran(lambda: layer(x, x, x, need_weights=False)[0].sum().backward())
        with torch.no_grad():
            fast = ran(lambda: layer.eval()(x, x, x, need_weights=False))
    assert (trained, fast) == (OURS, set())


class Attention(torch.nn.Module):
    """q, k and v from one product, as GPT-2 has them."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 4, -1).transpose(1, 2) for part in x.split(width // 3, dim=-1)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(batch, length, -1)


def stream() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 37, 3 * 64, generator=generator).requires_grad_()


@pytest.mark.parametrize("traced_with_it", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_graph_reaches_the_kernels_wherever_it_was_compiled(
    backend: str, traced_with_it: bool
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Attention(), backend=backend, fullgraph=True)
    x = stream()

    def results(module: Callable[[Tensor], Tensor]) -> list[Tensor]:
        out = module(x)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), x)]

    want = results(Attention())
    begun = accelerate() if traced_with_it else None
    results(compiled)
    if begun is not None:
        begun.remove()
    with accelerate():
        found: list[Tensor] = []
        assert ran(lambda: found.extend(results(compiled))) == OURS
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert ran(lambda: results(compiled)) == set()
    torch._dynamo.reset()


def test_an_exported_program_reaches_the_kernels() -> None:
    x = stream().detach()
    with accelerate():
        exported = torch.export.export(Attention(), (x,))
        found: list[Tensor] = []
        seen = ran(lambda: found.append(exported.module()(x)))
    assert seen == {"aero::attention_entropy"}
    torch.testing.assert_close(found[0], Attention()(x))
    torch.testing.assert_close(exported.module()(x), Attention()(x))
