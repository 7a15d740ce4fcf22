"""Every form of every operation, in each reader: against loops over the keys, and in the table."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from aero import _core, mpc
from aero.fixed_point import Approximations, functions
from aero.network import description, numpy_reader, ring_reader
from aero.network.checks import check_description
from aero.network.description import LENGTHS, Operation
from aero.network.primitives import CHOICES, FORMS, FUNCTIONS, NORM_ROLES, PRIMITIVES, READERS
from aero.network.ring_reader import RingNetwork
from aero.reading import UnreadableFileError

from .formed_networks import (
    ATTENTION,
    BIAS,
    CONTEXT,
    HEADS,
    OWN,
    PLAIN,
    SINK,
    VOCABULARY,
    B,
    D,
    G,
    H,
    T,
    headed,
    operations_of,
    values,
    whole,
)  # fmt: skip


def attention_by_loops(query, key, value, *, scale, cap, causal, window, bias, sink, lengths):
    """Softmax attention, key by key."""
    found = np.zeros((B, H, T, D))
    for b, h, i in itertools.product(range(B), range(H), range(T)):
        exponents, of = [], []
        for j in range(T):
            hidden = (causal and j > i) or (window and i - j >= window)
            if hidden or (lengths is not None and j >= lengths[b]):
                continue
            score = scale * sum(query[b, h, i, d] * key[b, h * G // H, j, d] for d in range(D))
            if cap:
                score = cap * np.tanh(score / cap)
            if bias is not None:
                score += bias[h, CONTEXT - 1 + i - j]
            exponents.append(np.exp(score))
            of.append(j)
        total = sum(exponents) + (np.exp(sink[h]) if sink is not None else 0)
        for j, exponent in zip(of, exponents, strict=True):
            found[b, h, i] += exponent / total * value[b, h * G // H, j]
    return found


@pytest.fixture(params=ATTENTION)
def attention(request):
    """A form with queries, keys, values and what loops make of them."""
    given = {"q": values(B, H, T, D), "k": values(B, G, T, D), "v": values(B, G, T, D, seed=2)}
    chosen = PLAIN | ATTENTION[request.param]
    expected = attention_by_loops(*given.values(), **chosen)
    tensors = {"the bias": BIAS, "the sink": SINK}
    return operations_of(request.param), given, chosen["lengths"], tensors, expected


def weights_of(operation, tensors):
    return {role: tensors[name] for role, name in operation.weights.items()}


def test_numpy_computes_attention_as_loops_over_the_keys_do(attention):
    operations, known, lengths, tensors, expected = attention
    known = known | {LENGTHS: lengths}
    for one in operations:
        inputs = (known[name] for name in one.inputs)
        function = numpy_reader.OPERATIONS[one.op]
        known[one.output] = function(one, weights_of(one, tensors), *inputs)
    np.testing.assert_allclose(known["y"], expected, rtol=1e-12, atol=1e-14)


def test_fixed_point_computes_attention_as_loops_over_the_keys_do(attention):
    operations, known, lengths, tensors, expected = attention
    run = ring_reader.RingOperations(Approximations())
    known = {name: run.encode(x) for name, x in known.items()} | {LENGTHS: lengths}
    for one in operations:
        inputs = (known[name] for name in one.inputs)
        encoded = {role: run.encode(x) for role, x in weights_of(one, tensors).items()}
        known[one.output] = ring_reader.OPERATIONS[one.op](run, one, encoded, *inputs)
    # SPU's tanh is right to 5e-3, exp to x^2 / 2^9 of itself.
    assert np.abs(functions.decode(known["y"]) - expected).max() < 0.03


def test_a_row_that_sees_no_key_is_zero():
    softmax = operations_of("rows without keys")[1]
    lengths = ATTENTION["rows without keys"]["lengths"]
    found = numpy_reader.OPERATIONS["softmax"](softmax, {}, values(B, H, T, T), lengths)
    # Of the second sequence only the first two rows see its one token.
    assert not found[1, :, 2:].any() and np.allclose(found[1, :, :2].sum(axis=-1), 1.0)


@pytest.mark.parametrize("kind", ["first", "last", "mean"])
@pytest.mark.parametrize("lengths", [None, OWN])
def test_pools_see_the_tokens_of_their_own_sequence(kind, lengths):
    x = values(B, T, 5)
    own = [x[b, : T if lengths is None else lengths[b]] for b in range(B)]
    pick = {"first": lambda rows: rows[0], "last": lambda rows: rows[-1],
            "mean": lambda rows: sum(rows) / len(rows)}[kind]  # fmt: skip
    expected = np.array([pick(rows) for rows in own])
    one = Operation("pool", {"kind": kind}, ("x",), "y")
    inputs = (lengths,) if lengths is not None else ()
    np.testing.assert_allclose(numpy_reader.OPERATIONS["pool"](one, {}, x, *inputs), expected)
    run = ring_reader.RingOperations(Approximations())
    found = ring_reader.OPERATIONS["pool"](run, one, {}, run.encode(x), *inputs)
    assert np.abs(functions.decode(found) - expected).max() < T * 2.0**-17


def test_fixed_point_takes_the_first_largest():
    x = np.array([[0.5, 2.0, 2.0], [-1.0, -3.0, -1.0]])
    one = Operation("argmax", {"width": 3}, ("x",), "y")
    run = ring_reader.RingOperations(Approximations())
    assert ring_reader.OPERATIONS["argmax"](run, one, {}, run.encode(x)).tolist() == [1, 0]


# What each word means, number by number, and where: fixed point has no numbers of large size.
MEANT = {
    "relu": (lambda x: max(x, 0.0), (-4, 4)),
    "leaky_relu": (lambda x: x if x > 0 else 0.25 * x, (-4, 4)),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1 + math.tanh(0.7978845608 * (x + 0.044715 * x**3))),
        (-4, 4),
    ),
    "gelu_erf": (lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)), (-4, 4)),
    "silu": (lambda x: x / (1 + math.exp(-x)), (-4, 4)),
    "tanh": (math.tanh, (-4, 4)),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), (-4, 4)),
    "exp": (math.exp, (-4, 0)),
    "reciprocal": (lambda x: 1 / x, (0.5, 4)),
    "rsqrt": (lambda x: x**-0.5, (0.5, 4)),
    "relu_squared": (lambda x: max(x, 0.0) ** 2, (-4, 4)),
}


@pytest.mark.parametrize("word", FUNCTIONS)
def test_numpy_and_fixed_point_compute_what_each_activation_means(word):
    function, ends = MEANT[word]
    x = np.linspace(*ends, 24).reshape(1, 4, 6)
    expected = np.array([function(each) for each in x.flat]).reshape(x.shape)
    one = Operation("activation", {"function": word, "width": 6, "slope": 0.25}, ("x",), "y")
    found = numpy_reader.OPERATIONS["activation"](one, {}, x)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    run = ring_reader.RingOperations(Approximations())
    found = ring_reader.OPERATIONS["activation"](run, one, {}, run.encode(x))
    assert np.abs(functions.decode(found) - expected).max() < 0.03


@pytest.mark.parametrize("kind", NORM_ROLES)
def test_numpy_and_fixed_point_compute_what_each_norm_means(kind):
    x, given = 2 * values(2, 3, 8), values(3, 8, seed=3)
    weights = {"weight": 1 + given[0] / 4, "bias": given[1], "scale": 1 + given[2] / 4,
               "alpha": np.array([0.5]), "shift": np.array([0.25])}  # fmt: skip
    weights = {role: weights[role] for role in NORM_ROLES[kind]}
    expected = np.zeros_like(x)
    for b, t in itertools.product(range(2), range(3)):
        row = [*map(float, x[b, t])]
        mean = sum(row) / 8
        centred = [each - mean for each in row] if kind == "layer" else row
        root = math.sqrt(sum(each**2 for each in centred) / 8 + 1e-5)
        for c in range(8):
            gain = weights.get("weight", weights.get("scale"))[c]
            value = {
                "layer": centred[c] / root, "rms": row[c] / root, "diagonal": row[c],
                "dynamic_tanh": math.tanh(0.5 * row[c]),
                "dynamic_erf": math.erf(0.5 * row[c] + 0.25),
            }[kind]  # fmt: skip
            expected[b, t, c] = value * gain + (weights["bias"][c] if "bias" in weights else 0)
    one = Operation("norm", {"kind": kind, "width": 8, "epsilon": 1e-5}, ("x",), "y")
    found = numpy_reader.OPERATIONS["norm"](one, weights, x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    run = ring_reader.RingOperations(Approximations())
    found = ring_reader.OPERATIONS["norm"](run, one, weights, run.encode(x))
    assert np.abs(functions.decode(found) - expected).max() < 0.03


@pytest.mark.parametrize("op", ["source", "rearrange", "route"])
def test_an_operation_that_has_a_price_alone_is_named(op):
    network = whole("plain")
    entries = [*network.description["operations"], {"op": op, "inputs": ["x"], "output": "x",
               **dict.fromkeys(PRIMITIVES[op].fields, 1), "scoring": "softmax"}]  # fmt: skip
    priced_alone = dataclasses.replace(
        network, description={**network.description, "operations": entries}
    )
    with pytest.raises(ValueError, match=op):
        numpy_reader.forward(priced_alone, np.zeros((B, T), dtype=int))
    with pytest.raises(ValueError, match=op):
        RingNetwork(priced_alone)


# --- the table of readers ---------------------------------------------------------------------


def example(op, form):
    """Fields, weights and number of inputs of an operation in one form."""
    fields = {name: 2 if kind is int else 0.0 for name, kind in PRIMITIVES[op].fields.items()}
    weights, inputs = (), PRIMITIVES[op].inputs or 2
    if op in CHOICES:
        field, words = CHOICES[op]
        fields[field] = form if form in words else words[0]
    if op == "softmax":
        fields |= {"causal": form != "both sides", "window": 3 if form == "window" else 0}
        weights = (form,) if form in ("bias", "sink") else ()
    fields |= {"groups": {"heads": 4}, "temperature": {"temperature": True},
               "soft cap": {"soft_cap": 5.0}}.get(form, {})  # fmt: skip
    return fields, weights, inputs + (form == "lengths")


FORM_NAMES = [(op, form) for op in FORMS for form in FORMS[op]] + [
    (op, word) for op, (_, words) in CHOICES.items() for word in words
]


@pytest.mark.parametrize(("op", "form"), FORM_NAMES)
def test_the_table_of_forms_has_no_hole(op, form):
    fields, weights, inputs = example(op, form)
    one = Operation(op, fields, ("x",) * inputs, "y", dict.fromkeys(weights, "w"))
    for reader, known in READERS.items():
        unknown = description.unknown_operation(reader, [one])
        if op in known:
            assert unknown is None, (reader, unknown)
        else:
            assert unknown == op


@pytest.mark.parametrize(("op", "form"), FORM_NAMES)
def test_a_form_that_a_reader_lacks_is_named(op, form, monkeypatch):
    fields, weights, inputs = example(op, form)
    one = Operation(op, fields, ("x",) * inputs, "y", dict.fromkeys(weights, "w"))
    lacking = {"cost": READERS["cost"] - {f"{op}, {form}"}}
    monkeypatch.setattr(description, "READERS", READERS | lacking)
    assert description.unknown_operation("cost", [one]) == f"{op}, {form}"


def test_fixed_point_names_what_it_lacks_before_it_encodes_weights(monkeypatch):
    lacking = {"fixed point": READERS["fixed point"] - {"softmax, window"}}
    monkeypatch.setattr(description, "READERS", READERS | lacking)
    with pytest.raises(ValueError, match=r"fixed point: softmax, window is not computed"):
        RingNetwork(whole("window"))


# --- whole networks, and their price ----------------------------------------------------------


@pytest.mark.parametrize("form", ATTENTION)
def test_fixed_point_follows_numpy_in_whole_networks(form):
    network = whole(form)
    tokens = np.random.default_rng(1).integers(VOCABULARY, size=(B, T))
    lengths = ATTENTION[form].get("lengths")
    expected = numpy_reader.forward(network, tokens, lengths)
    found = RingNetwork(network).logits(tokens, lengths)
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_networks_that_pool_or_end_in_argmax_are_valid_and_computed_by_both_readers(head, padded):
    network, (pools, chooses) = headed(head, padded), HEADS[head]
    check_description(network.description, "network.json")
    tokens = np.random.default_rng(1).integers(VOCABULARY, size=(B, T))
    lengths = OWN if padded else None
    expected = numpy_reader.forward(network, tokens, lengths)
    found = RingNetwork(network).logits(tokens, lengths)
    shape = (B,) if pools else (B, T)
    assert expected.shape == found.shape == (shape if chooses else (*shape, VOCABULARY))
    if chooses:
        same = expected == found  # places, but for logits that are nearly equal
        assert found.dtype == expected.dtype == np.int64 and same.mean() > 0.9
    else:
        assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("head", ["class", "token by token"])
def test_an_argmax_at_the_end_is_priced_row_by_row(head):
    described = headed(head, padded=False).description
    priced = _core.simulate(
        _core.Network(described["operations"], CONTEXT), _core.Stack("spu-aby3")
    )
    [found] = [one for one in priced["operations"] if one.kind == "argmax"]
    rows = CONTEXT if head == "token by token" else 1
    one = mpc.operation_cost("argmax", VOCABULARY, stack="spu-aby3")
    assert found.cost.comm_bytes == pytest.approx(rows * one.comm_bytes, rel=0.01)


def test_an_argmax_of_another_width_or_one_that_is_read_is_refused():
    for change, named in (
        ({"width": 9}, "expected a value of channels 9"),
        ({"output": "z"}, "expected the last, a linear or an argmax, to write 'logits' once"),
    ):
        damaged = headed("token by token").description
        damaged["operations"][-1].update(change)
        with pytest.raises(UnreadableFileError, match=named):
            check_description(damaged, "network.json")


def softmax_bytes(form, stack):
    described = whole(form).description
    native = _core.Network(described["operations"], CONTEXT)
    priced = _core.simulate(native, _core.Stack(stack))
    return {one.name: one.cost.comm_bytes for one in priced["operations"]}, priced["total"]


@pytest.mark.parametrize("stack", mpc.stack_names())
def test_a_sink_costs_one_more_key_and_other_forms_of_the_softmax_nothing(stack):
    operations, _ = softmax_bytes("plain", stack)
    for form in ("window", "bias", "lengths"):
        assert softmax_bytes(form, stack)[0] == operations, form
    try:
        expected = mpc.operation_cost("softmax", H * CONTEXT, CONTEXT + 1, stack=stack)
    except ValueError:  # prices quoted from papers know whole layers alone
        return
    described = whole("sink").description
    found = _core.simulate(_core.Network(described["operations"], CONTEXT), _core.Stack(stack))
    [softmax] = [one for one in found["operations"] if one.kind == "softmax"]
    assert softmax.cost.comm_bytes == pytest.approx(expected.comm_bytes, abs=1)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ([7, 8], "from 1 to 7"),
        ([0, 7], "from 1 to 7"),
        ([7], r"\[2\] integers"),
        ([1.5, 2], "integers"),
    ],
)
def test_lengths_that_no_sequences_have_are_refused(lengths, named):
    tokens = np.zeros((B, T), dtype=int)
    for call in (
        lambda: numpy_reader.forward(whole("lengths"), tokens, lengths),
        lambda: RingNetwork(whole("lengths")).logits(tokens, lengths),
    ):
        with pytest.raises(ValueError, match=named):
            call()


def test_a_description_with_every_form_is_accepted_and_damaged_ones_are_named():
    check_description(whole("all").description, "network.json")
    for change, named in (
        ({"weights": {"bias": "the sink", "sink": "the sink"}}, "bias: expected the shape"),
        ({"weights": {"gain": "the sink"}}, "expected weights among"),
        ({"inputs": ["s", "tokens"]}, "expected 1 inputs, got 2"),
    ):
        damaged = whole("all").description
        for one in damaged["operations"][1]["operations"]:
            if one["op"] == "softmax":
                one.update(change)
        with pytest.raises(UnreadableFileError, match=named):
            check_description(damaged, "network.json")
