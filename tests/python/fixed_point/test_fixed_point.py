"""Fixed-point functions on arrays: published errors, closed forms, bounds and error messages."""

import math
from functools import partial

import numpy as np
import pytest
from tests.python.refusals import assert_refused

from aero import fixed_point as fp
from aero.fixed_point.functions import (
    decode,
    encode,
    error_function,
    exponential,
    gelu,
    hyperbolic_tangent,
    layer_norm,
    leaky_relu,
    matmul,
    product,
    reciprocal,
    reciprocal_square_root,
    softmax,
    truncate,
)

ULP = 2.0**-18


def exact_softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize(("squarings", "published"), [(5, 0.057), (8, 0.0065)])
def test_softmax_error_on_normal_scores_is_the_published_one(squarings, published):
    """The largest absolute error over 12 x 128 rows of 128 scores from N(0, 1), generator seed 0.

    The published number is that of the formula (1 + x / 2^t)^(2^t) alone, in floating point. The
    truncations add at most: to each exponential 2^(t+1) ulp of which most is common to a row and
    cancels, and to the reciprocal 6e-5; 5e-4 bounds the rest.
    """
    scores = np.random.default_rng(0).standard_normal((12 * 128, 128))
    exact = exact_softmax(scores)
    shifted = scores - scores.max(-1, keepdims=True)
    powers = (1 + shifted / 2**squarings) ** (2**squarings)
    formula = abs(powers / powers.sum(-1, keepdims=True) - exact).max()
    assert formula == pytest.approx(published, rel=0.01)  # printed with two digits

    found = decode(softmax(encode(scores), squarings=squarings))
    assert abs(found - exact).max() == pytest.approx(formula, abs=5e-4)


def test_more_fraction_bits_bring_softmax_to_the_formula():
    scores = np.random.default_rng(1).standard_normal((64, 32))
    shifted = scores - scores.max(-1, keepdims=True)
    powers = (1 + shifted / 256) ** 256
    formula = powers / powers.sum(-1, keepdims=True)
    errors = []
    for bits in (14, 18, 24):
        arithmetic = fp.Arithmetic(fraction_bits=bits)
        found = softmax(encode(scores, arithmetic=arithmetic), arithmetic=arithmetic)
        errors.append(abs(decode(found, arithmetic=arithmetic) - formula).max())
    assert errors[0] > 4 * errors[1] > 16 * errors[2]
    # Of the reciprocal: two iterations from an error of 0.0858 leave 0.0858^4 = 5.4e-5.
    assert errors[2] < 1e-4


def test_a_softmax_row_sums_to_one():
    scores = np.random.default_rng(2).standard_normal((50, 128)) * 3
    sums = decode(softmax(encode(scores))).sum(-1)
    # 128 truncated products, an ulp each; the reciprocal is off by up to an ulp of a sum below 128
    # and by 6e-5.
    assert abs(sums - 1).max() <= 128 * ULP + 128 * ULP + 1e-4


def test_shares_are_off_by_little_and_reproducible():
    scores = encode(np.random.default_rng(3).standard_normal((20, 50)))
    plain = decode(softmax(scores))
    runs = [
        softmax(scores, arithmetic=fp.Arithmetic(truncation="shares", seed=seed))
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    # One ulp at the base becomes 256 after eight squarings, relative to a probability.
    assert abs(decode(runs[0]) - plain).max() < 3 * 256 * ULP


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 0), (2, 3, 5), ()])
def test_elementwise_functions_keep_shapes(shape):
    x = encode(np.full(shape, 0.5))
    for function in (reciprocal, reciprocal_square_root, hyperbolic_tangent, error_function, gelu):
        assert function(x).shape == shape
    assert exponential(-x).shape == product(x, x).shape == shape


def test_erf_is_odd_and_right_to_the_published_error():
    x = np.linspace(-8, 8, 20_001)
    elements = encode(x)
    found = decode(error_function(elements))
    # Abramowitz and Stegun's equation 7.1.27 is right to 5e-4, the reciprocal to 6e-5 of 1.
    assert abs(found - np.vectorize(math.erf)(x)).max() < 5.7e-4
    signed = elements[elements != 0]  # erf of 0 is two units, as the reciprocal of 1 is off
    assert np.array_equal(error_function(-signed), -error_function(signed))
    assert set(found[abs(x) >= 3]) == {-1.0, 1.0}


def test_non_contiguous_arrays_are_read_in_order():
    x = encode(np.random.default_rng(4).standard_normal((6, 8)))
    assert np.array_equal(gelu(x.T), gelu(np.ascontiguousarray(x.T)))
    assert np.array_equal(matmul(x.T, x), matmul(np.ascontiguousarray(x.T), x))


def test_matmul_is_the_exact_product_rounded_down():
    generator = np.random.default_rng(5)
    a = generator.integers(-(2**24), 2**24, (2, 3, 5, 7))
    b = generator.integers(-(2**24), 2**24, (2, 3, 7, 11))
    assert np.array_equal(matmul(a, b), (a @ b) >> 18)
    assert np.array_equal(matmul(a, b[0, 0]), (a @ b[0, 0]) >> 18)


def test_layer_norm_is_close_to_the_exact_one():
    x = np.random.default_rng(6).standard_normal((10, 128)) * 2 + 0.5
    gain, bias = np.linspace(0.5, 1.5, 128), np.linspace(-1, 1, 128)
    exact = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias
    found = layer_norm(encode(x), encode(gain), encode(bias), epsilon=1e-5)
    # 1 / sqrt is right to 1e-3.
    assert abs(decode(found) - exact).max() < 1e-3 * abs(exact - bias).max() + 1e-3


def test_softmax_sees_only_live_scores():
    scores = np.random.default_rng(7).standard_normal((2, 4, 4))
    live = np.broadcast_to(np.arange(1, 5), (2, 4))
    found = softmax(encode(scores), live=live)
    for row in range(4):
        alone = softmax(encode(scores[:, row, : row + 1]))
        assert np.array_equal(found[:, row, : row + 1], alone)
        assert not found[:, row, row + 1 :].any()


def test_stack_fields_become_approximations():
    spu = fp.Approximations.of_stack("spu-2024")
    assert (spu.exp_squarings, spu.gelu, spu.score_truncation) == (8, "tanh", True)
    assert spu == fp.Approximations()
    bumblebee = fp.Approximations.of_stack("openbumblebee", fraction_bits=20, seed=3)
    assert bumblebee.one_bit_product_error and bumblebee.clip_bits == 50
    assert (bumblebee.exp_squarings, bumblebee.gelu) == (5, "segment")
    assert bumblebee.arithmetic().fraction_bits == 20
    # A setting of costs alone changes nothing here.
    assert fp.Approximations.of_stack("spu-2024", private_weights=True, batch_heads=True) == spu


def test_described_stacks_compute_with_their_fields(tmp_path):
    path = tmp_path / "six.yaml"
    path.write_text("{format: 1, name: six, base: openbumblebee, fields: {exp_squarings: 6}}")
    bumblebee = fp.Approximations.of_stack("openbumblebee")
    six = fp.Approximations.of_stack("openbumblebee", exp_squarings=6)
    assert fp.Approximations.of_stack(path) == fp.Approximations.of_stack(str(path)) == six
    assert fp.Approximations.of_stack(path, exp_squarings=5) == bumblebee
    assert fp.Approximations.of_stack("blb") == bumblebee  # its prices are no arithmetic


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponential(np.ones(3)), "exponential: x must be an int64 array"),
        (lambda: exponential(encode([0.0]), squarings=18), "from 1 to 17, got 18"),
        (lambda: softmax(encode([[0.0]]), clip_bits=4), "from 5 to 64, got 4"),
        (lambda: softmax(encode([[0.0]]), live=[2]), "live must be integers from 0 to 1"),
        (lambda: softmax(encode([[0.0]]), live=[0.5]), "live must be integers"),
        (lambda: softmax(encode(1.0)), "got a scalar"),
        (lambda: matmul(encode([[1.0]]), encode([[1.0]] * 2)), "inner sizes"),
        (lambda: matmul(encode([1.0]), encode([[1.0]])), r"got \(1,\) and \(1, 1\)"),
        (lambda: product(encode([1.0]), encode([1.0] * 2)), "broadcastable"),
        (lambda: gelu(encode([1.0]), kind="erf"), '"piecewise", got "erf"'),
        (lambda: truncate(encode([1.0]), 64), "bits must be from 0 to 63"),
        (
            lambda: layer_norm(*[encode([1.0])] * 2, encode([1.0] * 2), epsilon=0),
            "width > 0",
        ),
        (lambda: fp.Arithmetic(fraction_bits=31), "from 12 to 30, got 31"),
        (lambda: fp.Arithmetic(truncation="round"), '"nearest" or "shares", got "round"'),
        (lambda: fp.Approximations.of_stack("spu"), "fixed point: stack must be"),
        (lambda: fp.Approximations.of_stack("spu-2024", exp_squaring=5), "did you mean"),
        (
            lambda: fp.Approximations.of_stack("spu-2024", static_max=True),
            "static_max needs a bound",
        ),
        (lambda: fp.Approximations.of_stack("spu-2024", gelu="erf"), "is priced only"),
        (lambda: fp.Approximations.of_stack("spu-2024", silu="logistic"), "is priced only"),
        (lambda: fp.Approximations.of_stack("spu-2024", exp_squarings=[5]), "got list"),
        (lambda: fp.Approximations.of_stack("none.yaml"), "none.yaml: cannot be read"),
        (lambda: fp.Approximations.of_stack("spu-2024", seed=-1), "seed must be from 0"),
        (lambda: fp.Approximations.of_stack("spu-2024", fraction_bits="x"), "must be an integer"),
        (lambda: fp.Approximations.of_stack("spu-2024", stack="x"), 'no field "stack"'),
    ],
)
def test_errors_say_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_errors_of_functions_are_those_the_docstrings_name():
    found = {error.name: error for error in fp.function_errors()}
    assert found["softmax"].largest == pytest.approx(0.0065, abs=5e-4)
    # exp by t squarings is off by -x^2 / 2^(t + 1); exp(x) passes 1/64 at x = -4.16.
    assert found["exp, 8 squarings"].largest_relative == pytest.approx(4.16**2 / 512, rel=0.1)
    assert found["product"].largest <= ULP
    assert found["1 / x"].largest_relative < 6e-5 + 64 * ULP
    assert found["1 / sqrt(x)"].largest_relative < 1e-3
    assert found["tanh"].largest < 0.005
    for kind, bound in (("tanh", 0.011), ("segment", 0.009), ("piecewise", 0.0185)):
        errors = fp.function_errors(fp.Approximations(gelu=kind))
        largest = next(error.largest for error in errors if error.name == f"GELU, {kind}")
        assert 0.9 * bound < largest < bound


def test_errors_follow_the_arithmetic():
    plain = fp.function_errors()
    changed = fp.function_errors(fp.Approximations(exp_squarings=5, truncation="nearest"))
    assert all(a.largest != b.largest for a, b in zip(plain, changed, strict=True))
    assert {e.name for e in changed} - {e.name for e in plain} == {"exp, 5 squarings"}
    once, twice = (
        fp.function_errors(fp.Approximations(truncation="shares", score_truncation=again))
        for again in (False, True)
    )
    assert [a.name for a, b in zip(once, twice, strict=True) if a != b] == ["softmax"]
    # More fraction bits leave the approximations, which are the larger part.
    fine = {e.name: e for e in fp.function_errors(fp.Approximations(fraction_bits=24))}
    assert fine["product"].largest <= 2.0**-24
    assert fine["tanh"].largest == pytest.approx(0.00486, abs=1e-4)


def test_leaky_relu_scales_what_is_negative():
    assert decode(leaky_relu(encode([2.0, 0.0, -2.0]), 0.25)).tolist() == [2.0, 0.0, -0.5]


SQUARE, THREE = np.ones((2, 2), dtype=np.int64), np.ones((1, 2, 2), dtype=np.int64)
ROW, ONE = SQUARE[0], SQUARE[0, :1]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("matmul", (SQUARE, SQUARE)),
        ("matmul", (THREE, np.ones((1, 3, 2), dtype=np.int64))),
        ("matmul", (THREE, np.ones((2, 2, 2), dtype=np.int64))),
        ("product", (SQUARE, ROW, False)),
        ("softmax", (ROW, ROW, 8, True, 64, False, False, True)),
        ("softmax", (SQUARE, ONE, 8, True, 64, False, False, True)),
        ("layer_norm", (ROW, ROW, ROW, 1e-5)),
        ("layer_norm", (SQUARE, ROW, ONE, 1e-5)),
    ],
)
def test_the_methods_of_an_arithmetic_refuse_shapes_that_they_do_not_take(name, arguments):
    call = partial(getattr(fp.Arithmetic(), name), *arguments)
    assert_refused(call, f"Arithmetic.{name}: ", " must ", ", got (", "functions")


def test_every_method_of_an_arithmetic_says_what_to_use():
    methods = [getattr(fp.Arithmetic, name) for name in dir(fp.Arithmetic) if name[0] != "_"]
    assert len(methods) > 10 and all(method.__doc__ for method in methods)
