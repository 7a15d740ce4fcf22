"""The matrix of transforms (docs/reference/transforms.md): each cell against the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap
from torch.utils._pytree import tree_leaves

from aero import ops
from aero.ops._autograd import _fold_mask

from . import oracle
from .transforms import EAGER, OPERATORS, PAGE, Call, page

pytestmark = pytest.mark.filterwarnings(
    "error:.*performance drop.*:UserWarning", "ignore:Attempted to insert a get_attr Node"
)


def call(operator: str, of: Any, dtype: torch.dtype = torch.float64, **backend: str) -> Call:
    """An operator with everything switched on; `of` holds the function."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def positive(*shape: int) -> Tensor:
        return (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype)

    run = getattr(of, operator)
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])[:, None, None]
    masked = {"mask": mask, "is_causal": True} | backend
    if operator == "attention_entropy":
        arguments = (normal(2, 2, 3, 2), normal(2, 1, 4, 2), normal(2, 1, 4, 2), positive(2, 3))

        def function(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
            return run(q, k, v, temperature=t, **masked)
    elif operator == "temperature_softmax":
        arguments = (normal(2, 2, 3, 4), positive(2))

        def function(scores: Tensor, t: Tensor) -> Any:
            return run(scores, temperature=t, **masked)
    elif operator == "entropy_regularization":
        arguments = (positive(2, 3, 2, 4), positive(2, 2) / 2)
        rows = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()

        def function(entropies: Tensor, thresholds: Tensor) -> Any:
            options = {"row_mask": rows, **backend}
            return run(entropies, thresholds, **options), run(
                entropies, thresholds, reduction="query_mean", **options
            )
    else:
        arguments = (normal(2, 3), normal(3, 3), normal(3), positive(1), positive())

        def function(x: Tensor, weight: Tensor, bias: Tensor, alpha: Tensor, beta: Tensor) -> Any:
            return (run(x, weight, bias, alpha=alpha, beta=beta, **backend),)

    return Call(function, arguments, tuple(normal(*x.shape) for x in arguments))


def same(got: Any, want: Any, **tolerance: float) -> None:
    got, want = tree_leaves(got), tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("transform", EAGER)
def test_a_transform_gives_what_it_gives_of_the_oracle(
    transform: str, operator: str, backend: str
) -> None:
    expected = EAGER[transform](call(operator, oracle))
    found = EAGER[transform](call(operator, ops, backend=backend))
    # Both round some hundred times at 1.1e-16, third derivatives at terms up to a thousand.
    same(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("operator", OPERATORS)
def test_finite_differences_agree_to_the_second_order(operator: str) -> None:
    of = call(operator, ops)
    torch.autograd.gradcheck(
        of.function,
        of.leaves(),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )
    torch.autograd.gradgradcheck(
        of.function,
        of.leaves(),
        check_fwd_over_rev=True,
        check_batched_grad=True,
        fast_mode=True,
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_values_are_native_where_there_are_tangents(operator: str) -> None:
    of = call(operator, ops, torch.float32)
    values, _ = jvp(of.function, of.arguments, of.directions)
    assert all(map(torch.equal, values, of.function(*of.arguments)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tangents_and_hessians_of_half_precision_have_its_dtype(dtype: torch.dtype) -> None:
    for operator in OPERATORS[:2]:
        of, exact = (call(operator, x, d) for x, d in ((ops, dtype), (oracle, torch.float64)))
        found = hessian(lambda x, of=of: of.function(x, *of.arguments[1:])[1].sum())(
            of.arguments[0]
        )
        rounded = [x.to(dtype).double() for x in exact.arguments]
        if operator == "attention_entropy":
            expected = hessian(lambda x, of=exact, r=rounded: of.function(x, *r[1:])[1].sum())(
                rounded[0]
            )
            assert found.dtype == dtype
            # Each gradient is rounded to eight bits or more.
            same(found.double(), expected, rtol=0.02, atol=0.02)


def test_dual_tensors_in_inference_mode_are_those_of_torch() -> None:
    of = call("scaled_ffn", ops)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(of.arguments[0], of.directions[0])
        with torch.inference_mode():
            for y in (torch.sin(x), *of.function(x, *of.arguments[1:])):
                assert forward_ad.unpack_dual(y).tangent is None


def test_statistics_have_no_derivative_and_integers_none_either() -> None:
    of = call("temperature_softmax", ops)
    scores, temperature = of.leaves()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(scores, of.directions[0])
        results = torch.ops.aero.temperature_softmax.default(dual, temperature, None, False)
        assert [y.requires_grad for y in results] == [True, True, True, False]
        tangents = [forward_ad.unpack_dual(y).tangent for y in results]
        assert [t is not None for t in tangents] == [True, True, True, False]
    entropies = torch.rand(1, 2, 1, 3, dtype=torch.float64)
    seen = torch.tensor([[1, 2, 3], [1, 1, 2]])

    def loss(entropies: Tensor) -> Tensor:
        return ops.entropy_regularization(
            entropies, torch.zeros(1, 1).double(), max_entropy="log_visible", visible_keys=seen
        )

    same(jvp(loss, (entropies,), (entropies,))[1], (grad(loss)(entropies) * entropies).sum())


def test_out_can_be_changed_in_place() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 3)
    out, entropy, _ = ops.attention_entropy(q, k, v.requires_grad_())
    out += 1  # a view would refuse
    entropy.mul_(2)


def compiled(function: Any, backend: str = "aot_eager", **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **options)


def test_compile_takes_the_transforms_of_torch_func() -> None:
    calls = [call(operator, ops) for operator in OPERATORS]

    def everything(*first: Tensor) -> Any:
        found = []
        for of, x in zip(calls, first, strict=True):

            def scalar(x: Tensor, of: Call = of) -> Tensor:
                return of.scalar(x, *of.arguments[1:])

            found.append(vmap(grad(scalar))(torch.stack([x, x.cos()])))
            found.append(jvp(grad(scalar), (x,), (x.cos(),)))
        return found

    first = [of.arguments[0] for of in calls]
    same(compiled(everything, fullgraph=True)(*first), everything(*first))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile_keeps_the_tangents_of_a_dual_level(backend: str) -> None:
    of = call("scaled_ffn", ops)

    def inside(x: Tensor) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, x.cos())
            return forward_ad.unpack_dual(of.function(dual, *of.arguments[1:])[0]).tangent

    def into(x: Tensor) -> Any:
        function = compiled(lambda dual: of.function(dual, *of.arguments[1:])[0], backend)
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.cos()))).tangent

    x = of.arguments[0]
    expected = inside(x)
    same([compiled(inside, backend)(x), into(x)], [expected, expected])
    with pytest.raises(RuntimeError, match="tangents_need_func_jvp_or_backend_reference"):
        compiled(inside, backend, fullgraph=True)(x)


def test_second_derivatives_that_torch_refuses_are_errors() -> None:
    of = call("scaled_ffn", ops)
    leaves = of.leaves()
    found = compiled(of.function, fullgraph=True)(*leaves)[0]
    first = torch.autograd.grad(found.sin().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(first, leaves, of.directions)
    with torch.autograd.graph.save_on_cpu():
        first = torch.autograd.grad(of.scalar(*leaves), leaves, create_graph=True)
        with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
            torch.autograd.grad(first, leaves, of.directions)


def test_export_and_aot_inductor_take_every_operator_with_dynamic_shapes(tmp_path: Any) -> None:
    class Everything(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Any:
            out, entropy, _ = ops.attention_entropy(q, k, v)
            mixed = ops.temperature_softmax(q @ k.mT, is_causal=True)[1]
            one = torch.ones(1)
            y = ops.scaled_ffn(out, weight, weight[0], alpha=one, beta=one)
            return y, ops.entropy_regularization([entropy, mixed], torch.zeros(2, 2))

    def inputs(batch: int, length: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(batch)
        q, k, v = torch.randn(3, batch, 2, length, 4, generator=generator)
        return q, k, v, torch.eye(4)

    batch, length = torch.export.Dim("batch", min=2, max=8), torch.export.Dim("length", min=2)
    shape = {0: batch, 2: length}
    program = torch.export.export(
        Everything(), inputs(3, 5), dynamic_shapes=(shape, shape, shape, None)
    )
    called = {str(node.target) for node in program.graph.nodes if "aero" in str(node.target)}
    assert called == {f"aero.{operator}.default" for operator in OPERATORS}
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "operators.pt2")
    )
    loaded = torch._inductor.aoti_load_package(package)
    for given in (inputs(3, 5), inputs(4, 7)):
        expected = Everything()(*given)
        same(program.module()(*given), expected)
        same(loaded(*given), expected, rtol=1e-5, atol=1e-6)


def test_autocast_bears_tangents_and_second_derivatives() -> None:
    for operator in ("attention_entropy", "scaled_ffn"):
        of, exact = call(operator, ops, torch.float32), call(operator, oracle)
        with torch.autocast("cpu", torch.bfloat16):
            found = jvp(grad(of.scalar, of.all), of.arguments, of.directions)
        expected = jvp(grad(exact.scalar, exact.all), exact.arguments, exact.directions)
        for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
            # bfloat16 keeps eight bits; second derivatives round a dozen times.
            assert (a.double() - b).norm() < 0.06 * max(b.norm().item(), 1)


def test_a_mask_that_all_sequences_share_is_not_copied_for_each() -> None:
    for shape in ((5, 7), (2, 5, 7), (1, 2, 5, 7)):
        mask = torch.ones(shape, dtype=torch.bool)
        assert _fold_mask(mask, None, 4, 3) is mask
    own = torch.rand(3, 2, 5, 7) > 0.5
    assert torch.equal(_fold_mask(own, None, 4, 3), own.repeat(4, 1, 1, 1))


def test_the_page_of_transforms_is_this_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/reference/transforms.md is stale: python -m tests.python.ops.transforms"
    )
