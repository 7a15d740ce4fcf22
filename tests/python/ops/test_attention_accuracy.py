"""The accuracy rules of attention_entropy on every instruction set this machine has.

Against float64 on the same inputs, T = 128 queries of D = 64 as models have them: what is made of
values and probabilities at most twice as wrong as the same computation in plain PyTorch; entropies
and the gradient of the temperature to five digits (four at t = 0.01, where the scores' own
rounding is a hundred times larger; one less in bfloat16 and float16).
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from aero._library import cpu_isa
from aero.ops import attention_entropy

from . import oracle

# Where a processor has tile registers, bfloat16 runs on them; elsewhere the C++ tests emulate them.
ALL_INSTRUCTION_SETS = ["scalar", "avx2", "avx512", "avx512bf16"]
ALL_INSTRUCTION_SETS += ["amx"] if cpu_isa() == "amx" else []
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AERO_CPU_ISA", request.param)
    if cpu_isa() != request.param:
        pytest.skip(f"this machine has no {request.param}, the best it runs is {cpu_isa()}")
    return str(request.param)


def per_row(low: float, high: float, sign: int = 1) -> Tensor:
    """[H, T] temperatures from low to high; with sign -1 every second one negative."""
    values = torch.logspace(0, 1, 4 * 128).reshape(4, 128)
    values = low * (high / low) ** ((values - 1) / 9)
    values[:, 1::2] *= sign
    return values


TEMPERATURES = {
    "none": None,
    "0.1": torch.tensor(0.1),
    "0.01": torch.tensor(0.01),
    "per head": torch.tensor([0.3, -0.5, 1.0, 7.0]),
    "per row": per_row(0.1, 10.0),
    "mixed signs": per_row(0.1, 10.0, -1),
}


# Up to four queries have passes of their own.
FEW_QUERIES = {"generation": 1, "three queries": 3}
BATCHES = {"generation": 32, "three queries": 96}


@functools.lru_cache(maxsize=len(DTYPES))
def drawn(setting: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """q, k, v and options. All values are multiples that every dtype holds."""
    generator = torch.Generator().manual_seed(11)
    heads = 2 if setting == "grouped heads" else 4
    # Enough rows that neither side of a comparison owes its errors to luck.
    queries = FEW_QUERIES.get(setting, 128)
    batch, head_dim = (BATCHES[setting], 80) if setting in FEW_QUERIES else (2, 64)

    def normal(heads: int, rows: int) -> Tensor:
        x = torch.randn(batch, rows, heads, head_dim, generator=generator).to(dtype)
        x = x.transpose(1, 2)  # [B, H, T, D] as models pass it
        return x if setting == "transposed views" else x.contiguous()

    tensors = {"q": normal(4, queries), "k": normal(heads, 128), "v": normal(heads, 128)}
    mask = None
    if setting == "mask":
        mask = torch.rand(2, 1, 128, 128, generator=generator) < 0.8
    if setting == "left padding":
        mask = (torch.arange(128) >= torch.tensor([0, 37])[:, None])[:, None, None]
    return tensors, {"mask": mask, "is_causal": setting != "mask"}


SETTINGS = ["contiguous", "transposed views", "mask", "left padding", "grouped heads", *FEW_QUERIES]


def plain(q: Tensor, k: Tensor, v: Tensor, t: Tensor | None, options: dict[str, Any]) -> Tensor:
    """The output as people write it, every step in the dtype of the inputs."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if t is not None:
        t = t.to(q.dtype)
        scores = scores / (t[..., None] if t.dim() == 2 else t[:, None, None] if t.dim() else t)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if options["is_causal"]:
        visible = visible.tril(scores.shape[-1] - scores.shape[-2])
    if options["mask"] is not None:
        visible = visible & options["mask"]
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1) * visible.any(-1, keepdim=True)) @ v


# The plainer temperatures need not meet every setting.
COMBINATIONS = [
    (name, setting)
    for name in TEMPERATURES
    for setting in SETTINGS
    if name in ("0.01", "mixed signs") or setting in ("contiguous", "generation")
]


Results = tuple[list[Tensor], list[Tensor], Tensor | None]


def results(backend: str, setting: str, name: str, dtype: torch.dtype) -> Results:
    """Outputs, gradients of q, k and v from out alone, and of t from all outputs."""
    tensors, options = drawn(setting, dtype)
    temperature = TEMPERATURES[name]
    if temperature is not None and setting in FEW_QUERIES and temperature.dim() == 2:
        temperature = temperature[:, -FEW_QUERIES[setting] :]
    exact = backend == "oracle"
    wide = torch.float64 if exact or dtype == torch.float64 else torch.float32
    leaves = [
        x.detach().to(torch.float64 if exact else dtype).requires_grad_() for x in tensors.values()
    ]
    t = None if temperature is None else temperature.detach().to(wide).requires_grad_()
    cotangent = torch.Generator().manual_seed(12)
    dout = torch.randn(leaves[0].shape, generator=cotangent).to(dtype).to(leaves[0].dtype)
    if backend == "plain":
        outputs = [plain(*leaves, t, options)]
    else:
        operator = oracle.attention_entropy if exact else attention_entropy
        outputs = list(operator(*leaves, temperature=t, **options))
    gradients = list(torch.autograd.grad(outputs[0], leaves, dout, retain_graph=True))
    if t is None or backend == "plain":
        return [x.detach() for x in outputs], gradients, None
    drows = [torch.randn(x.shape, generator=cotangent).to(x.dtype) for x in outputs[1:]]
    (dt,) = torch.autograd.grad(outputs, t, [dout, *drows])
    return [x.detach() for x in outputs], gradients, dt


@functools.lru_cache(maxsize=len(DTYPES))
def compared_with(setting: str, name: str, dtype: torch.dtype) -> tuple[Results, Results]:
    """Plain PyTorch and the oracle, which no instruction set of ours changes."""
    return results("plain", setting, name, dtype), results("oracle", setting, name, dtype)


# The topmost varies fastest: all instruction sets are held against the same numbers.
@pytest.mark.parametrize("instruction_set", ALL_INSTRUCTION_SETS, indirect=True)
@pytest.mark.parametrize(("name", "setting"), COMBINATIONS)
def test_errors_stay_within_the_rules(
    instruction_set: str, setting: str, name: str, relative_error: Any
) -> None:
    for dtype in DTYPES:
        check(dtype, setting, name, relative_error)


def check(dtype: torch.dtype, setting: str, name: str, relative_error: Any) -> None:
    outputs, gradients, dt = results("native", setting, name, dtype)
    (usual, usual_gradients, _), (exact, exact_gradients, exact_dt) = compared_with(
        setting, name, dtype
    )
    pairs = list(
        zip(
            [outputs[0], *gradients], [usual[0], *usual_gradients], [exact[0], *exact_gradients],
            strict=True,
        )
    )  # fmt: skip
    scores_rounding = 100 if name == "0.01" else 10 if name == "0.1" else 1
    for got, other, want in pairs:
        # An entry that plain torch rounds exactly may still be off by half a unit here; the
        # oracle of float64 is itself computed in float64.
        allowed = 2 * relative_error(other, want) + torch.finfo(dtype).eps
        if dtype == torch.float64:
            allowed = 1e-14 * scores_rounding
        assert relative_error(got, want) <= allowed
    digits = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-4)
    allowed = digits * (10 if name == "0.01" else 1)
    assert relative_error(outputs[1], exact[1]) <= allowed
    assert relative_error(outputs[2], exact[2]) <= allowed
    if dt is not None:
        assert relative_error(dt, exact_dt) <= allowed
