"""The calls that the tests of this folder make, on the device, and what they are compared with."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PYTHON_TESTS = Path(__file__).resolve().parents[1] / "python" / "ops"
#: What tests of accuracy run over: see the fixture `dtype`.
ELEMENTS = ("float32", "tf32", "bfloat16", "float16")
#: Tensors that are operands of products.
OPERANDS = ("q", "k", "v", "x", "weight")


# The list of samples that the operators are tested with on the CPU, and plain torch beside them.
# The files import one another, so they need a package.
_package = sys.modules["operator_tests"] = ModuleType("operator_tests")
_package.__path__ = [str(PYTHON_TESTS)]
_samples = importlib.import_module("operator_tests.samples")
_listed = importlib.import_module("operator_tests.conftest")
_every = importlib.import_module("operator_tests.test_every_operator")
SAMPLES = [sample for sample in _listed.SAMPLES if sample.is_on_cuda]
Draw, relative_error = _samples.Draw, _listed.relative_error
Inputs = _samples.Inputs


def rounds_products() -> bool:
    """Whether torch lets products of float32 round their operands to TF32."""
    return torch.get_float32_matmul_precision() != "highest"


def unit(dtype: torch.dtype) -> float:
    """The rounding of a result or of a product's operands, whichever is coarser."""
    return 2**-10 if dtype == torch.float32 and rounds_products() else torch.finfo(dtype).eps


def round_to_tf32(tensor: Tensor) -> Tensor:
    """Leaves a tensor's numbers with the 10 bits behind the point that TF32 has; in place."""
    places = tensor.detach()[tuple(slice(1 if s == 0 else None) for s in tensor.stride())]
    places.view(torch.int32).add_(0x1000).bitwise_and_(-0x2000)
    return tensor


def with_digits_of_products(inputs: Any) -> Any:
    """Operands with the digits that their products see, as those of half types have."""
    for name in OPERANDS:
        tensor = inputs.tensors.get(name)
        if tensor is not None and tensor.dtype == torch.float32 and rounds_products():
            round_to_tf32(tensor)
    return inputs


def on(device: torch.device, tensor: Tensor) -> Tensor:
    """The tensor on the device in the same memory layout, which `to` keeps for dense ones only."""
    if 0 in tensor.stride() or tensor.numel() == 0:
        moved = tensor.detach().to(device)
    else:
        moved = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
        ).copy_(tensor.detach())
    return moved.requires_grad_(tensor.requires_grad)


def inputs_on(device: torch.device, inputs: Any) -> Any:
    """A sample's arguments on the device."""
    options = {
        name: on(device, value) if isinstance(value, Tensor) else value
        for name, value in inputs.options.items()
    }
    moved = replace(inputs.mapped(lambda x: on(device, x)), options=options)
    return with_digits_of_products(moved)


def plain(inputs: Any) -> tuple[Tensor, ...]:
    """The operator in PyTorch as people write it, on the device of the inputs."""
    with next(iter(inputs.tensors.values())).device:
        results: tuple[Tensor, ...] = _every.plain(inputs)
    return results


def truncation(inputs: Any) -> float:
    """What float32 attention may lose more than plain torch does, on the tensor cores.

    A product leaves out low * low (2^-22 of it), and sums are rounded toward zero three times per
    step of 8, by up to 2^-23: over the D / 8 steps of a score, which a temperature then divides,
    and those of a tile of up to 64 rows. Sums over tiles are ordinary: T and S are not in it. With
    one key, dP and dO . O cancel and their errors remain. Heads of one channel are no product of
    matrices to torch, which then rounds no operand to TF32: theirs may be off by that, in dQ as
    often as gradients of scores cancel.
    """
    if inputs.operator != "attention_entropy" or inputs.tensors["q"].dtype != torch.float32:
        return 0.0
    k, temperature = inputs.tensors["k"], inputs.tensors.get("temperature")
    coldest = 1.0
    if temperature is not None and temperature.numel() > 0:
        coldest = min(1.0, float(temperature.detach().abs().min()))
    roundings = 3 * (k.shape[3] / coldest + 64) / 8
    of_operands = 2**-9 if k.shape[3] == 1 and rounds_products() else 0.0
    return (2**-21 + roundings * 2**-23) * (8 if k.shape[2] == 1 else 1) + of_operands


@dataclass(frozen=True)
class Compared:
    """One result or gradient: native, of plain torch, and in float64 on the same inputs."""

    name: str
    got: Tensor
    usual: Tensor
    exact: Tensor

    def check(self, extra: float) -> None:
        """Error at most twice that of plain torch, plus a rounding of the result itself."""
        allowed = 2 * relative_error(self.usual, self.exact)
        allowed += unit(self.got.dtype) + extra
        error = relative_error(self.got, self.exact)
        assert error <= allowed, f"{self.name}: error {error:.2e}, allowed {allowed:.2e}"


def compared(inputs: Any, cotangent: Tensor) -> list[Compared]:
    """The first result and what flows back from it; single numbers have rules of their own."""
    exact = inputs.double()
    native, usual, oracle = inputs.run(), plain(inputs), exact.run("reference")
    cotangents = (cotangent, *[None] * (len(native) - 1))
    gradients = [
        case.gradients(results, cotangents)
        for case, results in ((inputs, native), (inputs, usual), (exact, oracle))
    ]
    pairs = [Compared("result", native[0], usual[0], oracle[0])]
    names = [n for n in inputs.tensors if n not in ("temperature", "sinks", "alpha", "beta")]
    return pairs + [Compared(name, *(g[name] for g in gradients)) for name in names]


def all_results(inputs: Any, cotangents: tuple[Tensor | None, ...]) -> list[Tensor]:
    """Results and gradients of one call."""
    results = inputs.run()
    return [*results, *inputs.gradients(results, cotangents).values()]


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, by which NaN equals itself."""
    return tensor.detach().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Attention:
    """Sizes and options of an attention call."""

    queries: int
    keys: int
    head_dim: int
    batch: int = 2
    heads: int = 2
    key_heads: int = 2
    is_causal: bool = True
    mask: bool = False
    temperature: str | None = "HT"
    layout: str = "BTHD"
    low: float = 0.3  #: smallest temperature; the largest is five times that
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout_p: float = 0.0  #: weights are drawn anew in every call; see torch.manual_seed

    def __str__(self) -> str:
        plain = Attention(self.queries, self.keys, self.head_dim)
        changed = [f"{n}={v}" for n, v in vars(self).items() if v != getattr(plain, n)]
        return "-".join([f"T{self.queries}", f"S{self.keys}", f"D{self.head_dim}", *changed])

    def inputs(self, dtype: torch.dtype, device: torch.device) -> Any:
        """Arguments of attention_entropy, drawn on the CPU."""
        draw = Draw(7, dtype)
        rows = {"B": self.batch, "H": self.heads, "T": self.queries, "S": self.keys}

        def heads(count: int, length: int) -> Tensor:
            if self.layout == "offset":  # one element after an aligned address
                memory = draw.normal(self.batch * count * length * self.head_dim + 1)
                return on(device, memory)[1:].view(self.batch, count, length, self.head_dim)
            return on(device, draw.heads(self.layout, self.batch, count, length, self.head_dim))

        tensors = {
            "q": heads(self.heads, self.queries),
            "k": heads(self.key_heads, self.keys),
            "v": heads(self.key_heads, self.keys),
        }
        if self.temperature is not None:
            sizes = [rows[letter] for letter in self.temperature]
            values = draw.uniform(self.low, 5 * self.low, *sizes)
            tensors["temperature"] = on(device, values)
        if self.sinks:
            tensors["sinks"] = on(device, draw.uniform(-1, 1, self.heads))
        mask = draw.booleans(self.batch, 1, self.queries, self.keys) if self.mask else None
        options = {
            "softcap": self.softcap,
            "mask": None if mask is None else on(device, mask),
            "is_causal": self.is_causal,
            "scale": None,
        } | ({"window": self.window} if self.window else {})
        if self.dropout_p:
            options["dropout_p"] = self.dropout_p
        leaves = {name: x.requires_grad_() for name, x in tensors.items()}
        return with_digits_of_products(Inputs("attention_entropy", leaves, options))


def cotangents_on(device: torch.device, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Random gradients of results, the same in every call."""
    draw = Draw(1, torch.float64)
    drawn = [draw.normal(*r.shape).to(r.dtype).to(device) for r in results]
    if rounds_products() and drawn[0].dtype == torch.float32:
        round_to_tf32(drawn[0])
    return tuple(drawn)


def named(samples: list[Any]) -> dict[str, Any]:
    """Keyword arguments of pytest.mark.parametrize for samples."""
    return {
        "argvalues": samples,
        "ids": [f"{s.operator}-{s.name}".replace(" ", "_") for s in samples],
    }
