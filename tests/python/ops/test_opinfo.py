"""Torch's generic checks of operators, by OpInfo entries of ours, as torch runs them on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses import CrossRefFakeMode
from torch._subclasses.schema_check_mode import SchemaCheckMode

from aero import ops

from .conftest import SAMPLES
from .samples import Sample, variant

pytest.importorskip("expecttest")  # which torch's own tests import

# At its import torch's testing forbids to set global switches, as tests of TF32 do.
with mock.patch("torch.backends.disable_global_flags"):
    from torch.testing._internal import composite_compliance
    from torch.testing._internal.common_dtype import all_types_and_complex_and
    from torch.testing._internal.common_utils import gradcheck, gradgradcheck
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}


DROPOUT = variant("dropout", learned={}, others={"dropout_p": 0.4}, is_causal=True)
PLAIN = {"q", "k", "v", "scores", "temperature", "mask", "is_causal", "scale"}


def chosen(name: str) -> list[Sample]:
    """Some of an operator's calls, and all with variants of attention."""
    own = [s for s in SAMPLES if s.operator == name and s.small]
    few = own[:: max(1, len(own) // 5)]
    if name != "attention_entropy":
        return few
    built = [(s, s.inputs(torch.float64)) for s in own]
    varied = [s for s, i in built if not {*i.tensors, *i.options} <= PLAIN and s not in few]
    return [*few, *varied, DROPOUT]


def entry(name: str, dtypes: set[torch.dtype]) -> OpInfo:
    """An operator as torch lists its own: what it takes, and samples of calls."""

    def function(first: Tensor, *rest: Tensor, names: tuple[str, ...], **options: Any) -> Any:
        torch.manual_seed(0)  # of the dropout
        found = getattr(ops, name)(**dict(zip(names, (first, *rest), strict=True)), **options)
        if not isinstance(found, tuple):
            return found
        # Rows without keys have logsumexp and max_logits of -inf, beside which differences are NaN.
        return (*found[:2], *(x.clamp(min=-1e30) for x in found[2:] if x.is_floating_point()))

    def samples(
        op: OpInfo, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any
    ) -> Iterator[SampleInput]:
        for sample in chosen(name):
            inputs = sample.inputs(dtype if dtype in dtypes else torch.float32)
            tensors = [x.detach() for x in inputs.tensors.values()]
            if dtype not in dtypes:
                tensors = [x.to(dtype) for x in tensors]
            tensors = [x.requires_grad_(requires_grad) for x in tensors]
            options = {n: x for n, x in inputs.options.items() if x is not None}
            options["names"] = tuple(inputs.tensors)
            yield SampleInput(tensors[0], args=tuple(tensors[1:]), kwargs=options)

    return OpInfo(
        name, op=function, dtypes=dtypes, sample_inputs_func=samples, supports_out=False,
        supports_forward_ad=True, supports_fwgrad_bwgrad=True,
        check_batched_forward_grad=False, supports_autograd=True,
    )  # fmt: skip


ENTRIES = [
    entry("attention_entropy", FLOATS),
    entry("temperature_softmax", FLOATS),
    entry("scaled_ffn", FLOATS),
    entry("entropy_regularization", {torch.float32, torch.float64}),
]
EACH = pytest.mark.parametrize("op", ENTRIES, ids=lambda op: op.name)


def calls(op: OpInfo, dtype: torch.dtype = torch.float64, grad: bool = True) -> list[SampleInput]:
    found = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    assert len(found) >= 3
    return found


def flat(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@EACH
def test_the_dtypes_are_those_that_work(op: OpInfo) -> None:
    every = all_types_and_complex_and(torch.half, torch.bfloat16, torch.bool)
    for dtype in every:
        sample = calls(op, dtype, grad=False)[0]
        if dtype in op.dtypes:
            op(sample.input, *sample.args, **sample.kwargs)
            continue
        with pytest.raises(ValueError, match=rf"^{op.name}: .+ must be (float|real)"):
            op(sample.input, *sample.args, **sample.kwargs)


@EACH
def test_gradients_and_theirs_are_those_of_finite_differences(op: OpInfo) -> None:
    for sample in calls(op):
        arguments = (sample.input, *sample.args)

        def function(*tensors: Tensor, kwargs: Any = sample.kwargs) -> Any:
            return op(*tensors, **kwargs)

        assert gradcheck(function, arguments, fast_mode=True, check_forward_ad=True)
        assert gradgradcheck(function, arguments, fast_mode=True, gen_non_contig_grad_outputs=True)


@EACH
def test_tensors_that_are_not_contiguous_give_the_same(op: OpInfo) -> None:
    for sample in calls(op):
        other = sample.noncontiguous()
        results = flat(op(sample.input, *sample.args, **sample.kwargs))
        same = flat(op(other.input, *other.args, **other.kwargs))
        for one, two in zip(results, same, strict=True):
            torch.testing.assert_close(one, two)
        found, wanted = (
            torch.autograd.grad(sum(x.sum() for x in r), (s.input, *s.args), materialize_grads=True)
            for r, s in ((same, other), (results, sample))
        )
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, two)


@EACH
def test_fake_tensors_have_the_shapes_and_strides_of_results(op: OpInfo) -> None:
    for dtype in op.dtypes:
        for sample in calls(op, dtype):
            with CrossRefFakeMode(ignore_op_fn=lambda f: f.namespace != "aero"):
                results = flat(op(sample.input, *sample.args, **sample.kwargs))
                sum(x.sum() for x in results).backward()


@EACH
def test_no_argument_is_changed_or_aliased(op: OpInfo) -> None:
    for sample in calls(op, grad=False):
        with SchemaCheckMode():
            op(sample.input, *sample.args, **sample.kwargs)


@EACH
def test_tensor_subclasses_pass_through_as_torch_demands(op: OpInfo) -> None:
    for sample in calls(op, grad=False)[:4]:
        arguments = (sample.input, *sample.args)
        composite_compliance.check_with_mode(
            op, arguments, sample.kwargs, torch.testing.assert_close
        )


@EACH
def test_vmap_over_copies_is_a_loop(op: OpInfo) -> None:
    for sample in calls(op, grad=False):
        tensors = (sample.input, *sample.args)
        stacked = [torch.stack((x, -x)) for x in tensors[:1]]
        mapped = torch.vmap(lambda x, s=sample: op(x, *s.args, **s.kwargs), randomness="same")(
            *stacked
        )
        for n, x in enumerate(stacked[0]):
            for got, wanted in zip(
                flat(mapped), flat(op(x, *sample.args, **sample.kwargs)), strict=True
            ):
                torch.testing.assert_close(got[n], wanted)
