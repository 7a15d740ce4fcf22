"""The operators inside torch's machinery and inside whole networks, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from gpu_cases import SAMPLES, Attention, cotangents_on, inputs_on, named, relative_error
from gpu_machine import is_gpu
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from aero.ops import attention_entropy

if TYPE_CHECKING:
    from aero.models import AeroForCausalLM

SMALL = [s for s in SAMPLES if s.small][::5]
LABEL = "EReg(SM(t)+ScFuFFN)"


class RecordOperators(TorchDispatchMode):
    """Notes every call of one of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aero":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sample", **named(SMALL))
def test_opcheck_passes_forward_and_backward(sample: Any, device: torch.device) -> None:
    inputs = inputs_on(device, sample.inputs(torch.float32))
    with RecordOperators() as record:
        results = inputs.run()
        inputs.gradients(results, cotangents_on(device, results))
    assert len(record.calls) == 2
    for operator, args in record.calls:
        is_forward = not operator.__name__.split(".")[0].endswith("_backward")
        fresh = tuple(
            x.detach().requires_grad_(is_forward and x.is_floating_point())
            if isinstance(x, Tensor)
            else x
            for x in args
        )
        torch.library.opcheck(operator, fresh)


def penalised(inputs: Any) -> Tensor:
    out, entropy, _ = inputs.run()
    loss: Tensor = out.float().square().sum() + entropy.square().sum()
    return loss


def gradients_of(inputs: Any, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(inputs.tensors.values())))


def test_a_compiled_function_equals_the_eager_one(gpu: torch.device) -> None:
    inputs = Attention(130, 130, 64).inputs(torch.bfloat16, gpu)

    def function(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
        out, entropy, _ = attention_entropy(q, k, v, temperature=temperature, is_causal=True)
        return out.float().square().sum() + entropy.square().sum()

    # On the CPU the tracing alone, which is what differs between versions of torch.
    backend = "inductor" if is_gpu(gpu) else "aot_eager"
    graph = torch.compile(function, fullgraph=True, backend=backend)
    compiled = graph(*inputs.tensors.values())
    eager = function(*inputs.tensors.values())
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=0)
    for a, b in zip(gradients_of(inputs, compiled), gradients_of(inputs, eager), strict=True):
        assert relative_error(a, b) < torch.finfo(a.dtype).eps


def test_activation_checkpointing_changes_nothing(device: torch.device) -> None:
    inputs = Attention(70, 70, 32).inputs(torch.bfloat16, device)
    plain = gradients_of(inputs, penalised(inputs))
    saved = gradients_of(inputs, checkpoint(lambda: penalised(inputs), use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(plain, saved, strict=True))


def network(device: torch.device) -> AeroForCausalLM:
    from aero.models import AeroConfig, AeroForCausalLM  # imports transformers: seconds

    torch.manual_seed(0)
    config = AeroConfig.from_label(LABEL, model="tiny", entropy_weight=1e-3, entropy_tokens=93)
    return AeroForCausalLM(config).to(device)


def tokens(network: AeroForCausalLM, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (3, min(64, network.config.spec.context_length))
    drawn = torch.randint(network.config.spec.vocab_size, shape, generator=generator)
    return drawn.to(device)


def test_a_networks_loss_entropies_and_gradients_are_those_of_the_cpu(
    device: torch.device,
) -> None:
    here, there = network(device), network(torch.device("cpu"))
    outputs = []
    for model in (here, there):
        ids = tokens(model, next(model.parameters()).device)
        outputs.append(model(ids, labels=ids))
        outputs[-1].loss.backward()
    assert abs(outputs[0].loss.item() - outputs[1].loss.item()) < 1e-4
    for a, b in zip(outputs[0].entropies, outputs[1].entropies, strict=True):
        assert relative_error(a.cpu(), b) < 1e-4
    for (name, a), b in zip(here.named_parameters(), there.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None, name
        assert relative_error(a.grad.cpu(), b.grad) < 1e-3, name


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_a_network_learns_one_batch_under_autocast(
    precision: torch.dtype, device: torch.device
) -> None:
    model = network(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    ids = tokens(model, device)
    losses = []
    for _ in range(30):
        with torch.autocast(device.type, precision):
            loss = model(ids, labels=ids).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    first, last = losses[0].item(), losses[-1].item()
    assert last < 0.8 * first, (first, last)
