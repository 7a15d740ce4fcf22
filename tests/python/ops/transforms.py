"""Every transform that the operators are promised to bear, one row each, and the page made of it.

`python -m tests.python.ops.transforms` in the repository's folder writes
docs/reference/transforms.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from aero.tables import markdown_table

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "transforms.md"
OPERATORS = ("attention_entropy", "temperature_softmax", "entropy_regularization", "scaled_ffn")
WORKS = "yes"

Function = Callable[..., tuple[Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator of its float arguments alone, with numbers for them."""

    function: Function
    arguments: tuple[Tensor, ...]
    directions: tuple[Tensor, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(range(len(self.arguments)))

    def scalar(self, *arguments: Tensor) -> Tensor:
        """A number whose second derivatives are not zero, of every result."""
        results = self.function(*arguments)
        weights = [
            torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape) for y in results
        ]
        numbers = [(w * y.sin()).sum() for w, y in zip(weights, results, strict=True)]
        return torch.stack(numbers).sum()

    def batch(self) -> tuple[Tensor, ...]:
        return tuple(
            torch.stack([x, x + 0.1 * d, x - 0.2 * d])
            for x, d in zip(self.arguments, self.directions, strict=True)
        )

    def leaves(self) -> list[Tensor]:
        return [x.clone().requires_grad_() for x in self.arguments]


def backward(call: Call) -> Any:
    leaves = call.leaves()
    return torch.autograd.grad(call.scalar(*leaves), leaves)


def double_backward(call: Call) -> Any:
    leaves = call.leaves()
    first = torch.autograd.grad(call.scalar(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(first, leaves, call.directions)


def third_backward(call: Call) -> Any:
    leaves = call.leaves()
    first = torch.autograd.grad(call.scalar(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad(first, leaves, call.directions, create_graph=True)
    return torch.autograd.grad(second, leaves, call.directions)


def duals(call: Call, *, last: bool = False) -> Any:
    """Tangents of the results; of the last argument alone, where only it has one."""
    with forward_ad.dual_level():
        arguments = list(call.arguments)
        for i in call.all[-1:] if last else call.all:
            arguments[i] = forward_ad.make_dual(arguments[i], call.directions[i])
        return [forward_ad.unpack_dual(y).tangent for y in call.function(*arguments)]


def without_grad(call: Call) -> Any:
    with torch.no_grad():
        return duals(call)


def forward_over_reverse(call: Call) -> Any:
    leaves = call.leaves()
    with forward_ad.dual_level():
        arguments = [
            forward_ad.make_dual(x, d) for x, d in zip(leaves, call.directions, strict=True)
        ]
        found = torch.autograd.grad(call.scalar(*arguments), leaves)
        return [forward_ad.unpack_dual(x).tangent for x in found]


def batched_gradients(call: Call) -> Any:
    leaves = call.leaves()
    result = call.function(*leaves)[0]
    some = torch.stack([torch.ones_like(result), result.detach()])
    return torch.autograd.grad(result, leaves, some, is_grads_batched=True)


def cotangent_of_two(call: Call) -> Any:
    _, pullback = vjp(call.scalar, *call.arguments)
    return pullback(torch.tensor(2.0, dtype=torch.float64))


def after_the_transform(call: Call) -> Any:
    # The saved tensors of the inner gradient belong to a transform that has ended.
    _, pullback = vjp(grad(call.scalar), *call.arguments)
    return pullback(call.directions[0])


def checkpointed(call: Call) -> Any:
    leaves = call.leaves()
    result = checkpoint(call.scalar, *leaves, use_reentrant=False)
    first = torch.autograd.grad(result, leaves, create_graph=True)
    return torch.autograd.grad(first, leaves, call.directions)


#: Transform -> its result; every operator must give the oracle's.
EAGER: dict[str, Callable[[Call], Any]] = {
    "backward": backward,
    "double backward": double_backward,
    "third derivative by backward": third_backward,
    "`forward_ad.dual_level`": duals,
    "... a tangent of one argument alone": lambda call: duals(call, last=True),
    "... in `torch.no_grad`": without_grad,
    "... through `backward` (Hessian-vector product)": forward_over_reverse,
    "`torch.func.jvp`": lambda call: jvp(call.function, call.arguments, call.directions),
    "`jacfwd`": lambda call: jacfwd(call.function, call.all)(*call.arguments),
    "`torch.func.grad`": lambda call: grad(call.scalar, call.all)(*call.arguments),
    "`torch.func.vjp`": cotangent_of_two,
    "... of `grad`, called after it ended": after_the_transform,
    "`jacrev`": lambda call: jacrev(call.function, call.all)(*call.arguments),
    "`hessian`": lambda call: hessian(call.scalar, call.all)(*call.arguments),
    "`jacrev(jacrev)`": lambda call: jacrev(jacrev(call.scalar))(*call.arguments),
    "`jvp(grad)` (Hessian-vector product)": lambda call: jvp(
        grad(call.scalar, call.all), call.arguments, call.directions
    ),
    "`vmap`": lambda call: vmap(call.function)(*call.batch()),
    "... over one argument": lambda call: vmap(call.function, (*(None,) * (len(call.all) - 1), 0))(
        *call.arguments[:-1], call.batch()[-1]
    ),
    "`vmap(grad)`": lambda call: vmap(grad(call.scalar, call.all))(*call.batch()),
    "`vmap(vmap(grad))`": lambda call: vmap(vmap(grad(call.scalar, call.all)))(
        *(torch.stack([x, x + 0.1]) for x in call.batch())
    ),
    "`grad(vmap)`": lambda call: grad(lambda *x: vmap(call.scalar)(*x).sum(), call.all)(
        *call.batch()
    ),
    "`vmap(hessian)`": lambda call: vmap(hessian(call.scalar))(*call.batch()),
    "`is_grads_batched`": batched_gradients,
    "`torch.utils.checkpoint`, differentiated twice": checkpointed,
}

#: Those in which torch refuses random numbers, such as dropout's seeds, unless its argument
#: `randomness` says whether they are the same for every entry.
NO_RANDOMNESS = (
    "`jacfwd`", "`hessian`", "`vmap`", "... over one argument", "`vmap(grad)`",
    "`vmap(vmap(grad))`", "`grad(vmap)`", "`vmap(hessian)`",
)  # fmt: skip

#: Transform -> the behaviour of every operator; test_transformations.py has a test of each line.
TRACED = {
    "`torch.compile`, dynamic shapes, with gradients": WORKS,
    "`torch.compile` of `grad`, `vmap(grad)`, `jvp`, `hessian`": WORKS,
    "`torch.compile` and `dual_level`": "runs the operator outside the graph; with "
    "`fullgraph=True` an error that says so",
    "`torch.compile`, double backward": "torch's error: `torch.compile with aot_autograd "
    "does not currently support double backward`",
    "`torch.export` with dynamic shapes": WORKS,
    "AOTInductor": WORKS,
    "autocast": "yes; tangents and second derivatives may be rounded to its dtype",
    "double backward inside `saved_tensors_hooks`": "torch's error: `don't yet support saved "
    "tensor hooks`",
    "`forward_ad` in `torch.inference_mode`": "no tangent, as torch has it for every function",
    "FakeTensor and meta tensors": WORKS,
}


def page() -> str:
    """docs/reference/transforms.md."""
    head = (
        "# Transforms\n\n"
        "This page shows what torch's transforms do with the four operators. "
        "`tests/python/ops/test_transformations.py` checks every cell.\n\n"
        "Values and first gradients are native. "
        "Tangents (forward mode) and second derivatives come from the plain PyTorch form; that of "
        "attention builds the [T, S] scores. [Attention](attention.md) has its features under each "
        "transform that needs no compiler. "
        '`backend="reference"` supports the same transforms, and the test compares it there.\n\n'
    )
    rows = [(name, *(WORKS,) * 4) for name in EAGER]
    rows += [(name, *(what,) * 4) for name, what in TRACED.items()]
    header = ("transform", *(f"`{name}`" for name in OPERATORS))
    return f"{head}{markdown_table(header, rows)}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
