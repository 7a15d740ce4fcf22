import math

import pytest
import torch

from aero.nn import Temperature


@pytest.mark.parametrize(
    ("shape", "expected"), [("head_position", (3, 8)), ("head", (3,)), ("scalar", (1,))]
)
def test_shapes_and_start(shape, expected):
    temperature = Temperature(shape, num_heads=3, context_length=8, init=0.25)
    assert temperature().shape == expected
    assert temperature.value.shape == expected
    torch.testing.assert_close(temperature(), torch.full(expected, 0.25))


def test_log_parametrization_stores_the_logarithm_and_stays_positive():
    temperature = Temperature(
        "head", num_heads=2, context_length=4, init=0.1, parametrization="log"
    )
    torch.testing.assert_close(temperature.value, torch.full((2,), math.log(0.1)))
    with torch.no_grad():
        temperature.value -= 50
    assert (temperature() > 0).all()


def test_positions_are_looked_up_by_id():
    temperature = Temperature("head_position", num_heads=2, context_length=8)
    with torch.no_grad():
        temperature.value.copy_(torch.arange(16.0).view(2, 8))
    ids = torch.tensor([[0, 1, 2], [5, 6, 7]])
    expected = torch.tensor([[[0.0, 1, 2], [8, 9, 10]], [[5, 6, 7], [13, 14, 15]]])
    assert torch.equal(temperature(ids), expected)
    assert torch.equal(temperature(ids[1:]), expected[1])
    sliced = temperature(first_position=5, num_positions=3)
    assert torch.equal(sliced, expected[1])
