"""Causal convolutions against torch's own conv1d."""

import pytest
import torch
import torch.nn.functional as F

from aero.nn import SequenceContext
from aero.nn.convolution import CausalConvolution

TAPS = [2, 3, 8]


def _drawn(width, taps, kind):
    torch.manual_seed(taps)
    convolution = CausalConvolution(width, taps, kind).double()
    torch.nn.init.normal_(convolution.weight)
    return convolution


@pytest.mark.parametrize("length", [1, 2, 7, 11])
@pytest.mark.parametrize("taps", TAPS)
def test_a_full_one_is_the_conv1d_of_the_tokens_before(taps, length):
    convolution = _drawn(5, taps, "full")
    x = torch.randn(3, length, 5, dtype=torch.float64)
    # conv1d's kernel is [out, in, taps], oldest first; the newest tap is the FFN's.
    kernel = torch.cat([torch.zeros(1, 5, 5), convolution.weight]).flip(0).permute(2, 1, 0)
    expected = F.conv1d(F.pad(x.transpose(1, 2), (taps - 1, 0)), kernel).transpose(1, 2)
    torch.testing.assert_close(convolution(x, SequenceContext()), expected)


@pytest.mark.parametrize("kind", ["depthwise", "token_shift"])
@pytest.mark.parametrize("length", [1, 2, 7, 11])
@pytest.mark.parametrize("taps", TAPS)
def test_a_depthwise_one_is_the_conv1d_with_a_group_for_each_channel(taps, length, kind):
    convolution = _drawn(5, taps, kind)
    x = torch.randn(3, length, 5, dtype=torch.float64)
    kernel = convolution.weight.flip(0).t().unsqueeze(1)
    padded = F.pad(x.transpose(1, 2), (taps - 1, 0))
    expected = F.conv1d(padded, kernel, groups=5).transpose(1, 2)
    torch.testing.assert_close(convolution(x, SequenceContext()), expected)


@pytest.mark.parametrize(
    ("kind", "factor"), [("full", 0.0), ("depthwise", 1.0), ("token_shift", 1.0)]
)
def test_a_new_one_leaves_the_network_as_it_was_without(kind, factor):
    x = torch.randn(2, 6, 4)
    assert torch.equal(CausalConvolution(4, 3, kind)(x, SequenceContext()), factor * x)


@pytest.mark.parametrize("kind", ["full", "depthwise", "token_shift"])
def test_derivatives_are_those_of_differences(kind):
    convolution = _drawn(3, 3, kind)
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)

    def function(inputs, weight):
        return torch.func.functional_call(
            convolution, {"weight": weight}, (inputs, SequenceContext())
        )

    assert torch.autograd.gradcheck(function, (x, convolution.weight))


@pytest.mark.parametrize("kind", ["full", "depthwise", "token_shift"])
def test_tokens_that_a_mask_hides_are_zeros(kind):
    convolution = _drawn(4, 3, kind)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    mask = torch.ones(7, 7, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    mask[0, :, :, :3] = False  # padding on the left
    mask[1, :, 4:, :4] = False  # a second sequence in the row
    found = convolution(x, SequenceContext(mask=mask))
    alone = [convolution(x[:1, 3:], SequenceContext()), convolution(x[1:, 4:], SequenceContext())]
    torch.testing.assert_close(found[:1, 3:], alone[0])
    torch.testing.assert_close(found[1:, 4:], alone[1])
    torch.testing.assert_close(found[1:, :4], convolution(x[1:, :4], SequenceContext()))
