"""A description is refused before a reader stumbles over it, and every reader knows its table."""

import ast
import copy
import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import aero
from aero import _core
from aero.network import checks, numpy_reader, primitives, ring_reader
from aero.network.checks import check_description
from aero.network.description import layer_count, operations_of
from aero.network.files import read_network
from aero.network.primitives import CHOICES, FUNCTIONS, PRIMITIVES, READERS
from aero.reading import UnreadableFileError

from ..export.conftest import trained
from ..models.labels import FAMILIES, LABELS


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = aero.export_weights(trained("SM(t)+LN+G", "pythia"), tmp_path_factory.mktemp("made"))
    return json.loads((folder / "network.json").read_text())


# This environment lacks jax.
COMPUTE = Path(numpy_reader.__file__).parents[1] / "private/compute"
IN_JAX = [
    node
    for name in ("forward.py", "elements.py")
    for node in ast.parse((COMPUTE / name).read_text()).body
]
FUNCTIONS_IN_JAX = {node.name for node in IN_JAX if isinstance(node, ast.FunctionDef)}
TABLES_IN_JAX = {
    node.target.id.strip("_"): {key.value for key in node.value.keys}
    for node in IN_JAX
    if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
}


def operation(described, op):
    entries = [one for entry in described["operations"] for one in entry.get("operations", [entry])]
    return next(one for one in entries if one["op"] == op)


def price(operations):
    network = _core.Network(operations, 8)
    return _core.simulate(network, _core.Stack("spu-0.9.5"))


LANGUAGE_MODEL = [
    {"op": "embed", "inputs": ["tokens"], "output": "x", "part": "embed", "rows": 9, "width": 4},
    None,
    {
        "op": "linear", "inputs": ["x"], "output": "logits", "part": "lm head", "in": 4, "out": 9,
        "transposed": False,
    },
]  # fmt: skip
_NUMBERS = {"int": 2, "bool": False, "str": "", "float": 0.5}


def example(op):
    """An operation of this kind in a network of width 4."""
    fields = PRIMITIVES[op].fields
    found = {name: _NUMBERS.get(getattr(kind, "__name__", "float"), 0.5) for name, kind in
             fields.items()}  # fmt: skip
    found |= {"kind": "layer"} if op == "norm" else {"kind": "last"} if op == "pool" else {}
    found |= {"function": "relu"} if op == "activation" else {}
    found |= {"soft_cap": 0.0} if op == "scores" else {}
    one = dict.fromkeys(("groups", "chosen_groups", "group_best"), 1)
    found |= {"scoring": "softmax", **one} if op == "route" else {}
    wanted = PRIMITIVES[op].inputs
    inputs = ["x"] * (2 if wanted is None else wanted)
    return {"op": op, "inputs": inputs, "output": "x", "part": "ffn", **found}


@pytest.mark.parametrize("op", PRIMITIVES)
def test_every_reader_knows_the_operations_that_the_table_says(op):
    assert hasattr(numpy_reader, f"_{op}") == (op in READERS["NumPy"])
    assert hasattr(ring_reader, f"_{op}") == (op in READERS["fixed point"])
    assert (f"_{op}" in FUNCTIONS_IN_JAX) == (op in READERS["private"])
    operations = [LANGUAGE_MODEL[0], {"repeat": 2, "operations": [example(op)]}, LANGUAGE_MODEL[2]]
    if op in READERS["cost"]:
        assert price(operations)["total"].comm_bytes > 0
    else:
        with pytest.raises(ValueError, match="no price"):
            price(operations)


@pytest.mark.parametrize("op", ["norm", "activation", "pool"])
def test_every_reader_has_a_function_for_each_word(op):
    field, words = CHOICES[op]
    table = f"{op.upper()}S"
    assert {*getattr(numpy_reader, f"_{table}")} == {*words}
    assert {*getattr(ring_reader, f"_{table}")} == {*words}
    assert TABLES_IN_JAX[table] == {*words}
    for word in words:
        one = example(op) | {field: word}
        priced = price([LANGUAGE_MODEL[0], {"repeat": 2, "operations": [one]}, LANGUAGE_MODEL[2]])
        assert priced["total"].comm_bytes > 0
    with pytest.raises(ValueError, match="mish"):
        price([LANGUAGE_MODEL[0], example(op) | {field: "mish"}, LANGUAGE_MODEL[2]])


def test_a_word_without_a_function_stops_a_reader(monkeypatch):
    tables = {op: getattr(numpy_reader, f"_{op.upper()}S") for op in ("norm", "activation", "pool")}
    names = READERS["NumPy"]
    assert primitives.functions_of(vars(numpy_reader), names, **tables) == numpy_reader.OPERATIONS
    words = {**CHOICES, "activation": ("function", (*FUNCTIONS, "mish"))}
    monkeypatch.setattr(primitives, "CHOICES", words)
    with pytest.raises(LookupError, match="mish"):
        primitives.functions_of(vars(numpy_reader), names, **tables)


# The words of what came last, in any file that knows it.
ADDITIONS = {
    "the causal convolution": r"_?[uU]nfold",
    "RMSNorm": r"kRms|rms|_rms|rmsnorm",
    "SiLU": r"kSilu|Silu|_?silu",
    "the gate's product": r"Multiply|_multiply|multiply(?=\")",
    "groups of query heads": r"_?key_heads|_by_groups|_grouped",
    "the squared ReLU": r"kReluSquared|_?relu_squared",
}
# Description and readers: what computes, checks or prices an operation. Files that write networks
# which have it, or propose it, are rows of their own families and count there.
READ_IN = (
    "csrc/network", "csrc/mpc", "csrc/bindings", "csrc/fixed_point", "python/aero/network",
    "python/aero/private", "python/aero/fixed_point",
)  # fmt: skip


@pytest.mark.parametrize("what", ADDITIONS)
def test_an_operation_is_in_at_most_ten_source_files(what):
    root = Path(__file__).parents[3]
    word = re.compile(rf"\b({ADDITIONS[what]})\b")
    files = [
        path.relative_to(root).as_posix()
        for folder in READ_IN
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".h", ".cpp", ".py") and word.search(path.read_text())
    ]
    assert len(files) <= 10, files
    if what == "the causal convolution":
        count = {6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}[len(files)]
        assert f"operation `unfold` is in {count}" in (root / "CONTRIBUTING.md").read_text(), files
    readers = (
        ("network.h",), ("primitives.py",), ("numpy_reader.py",),
        ("ring_reader.py", "ring_elements.py"), ("compute/forward.py", "compute/elements.py"),
    )  # fmt: skip
    for reader in readers:
        assert any(name.endswith(reader) for name in files), (reader, files)


def test_the_fields_of_the_table_are_those_of_the_native_side():
    for op in PRIMITIVES:
        complete = example(op)
        for name in PRIMITIVES[op].fields:
            lacking = {key: value for key, value in complete.items() if key != name}
            with pytest.raises(ValueError, match=f'"{name}"'):
                _core.Network([LANGUAGE_MODEL[0], lacking, LANGUAGE_MODEL[2]], 8)


PAIRS = [
    (label, family)
    for label in LABELS
    for family in FAMILIES
    if not (label.startswith("SOTA:") and family == "pythia")  # shaped attention has one residual
]


@pytest.mark.parametrize(("label", "family"), PAIRS)
def test_a_description_that_is_read_again_has_the_same_price(label, family):
    spec = aero.ArchitectureSpec.from_label(label, model="tiny", **FAMILIES[family])
    network = _core.describe(spec)
    again = _core.Network(network.operations, network.context_length)
    stack = _core.Stack("openbumblebee")
    assert _core.simulate(again, stack) == _core.simulate(network, stack)


def test_layers_are_counted_and_numbered(described):
    assert layer_count(described) == 2
    assert [one.layer for one in operations_of(described) if one.op == "scores"] == [0, 1]


def changed(described, change):
    other = copy.deepcopy(described)
    change(other)
    return other


@pytest.mark.parametrize("form", ["one entry", "an entry each", "no repetition"])
def test_too_many_layers_are_refused_before_any_is_looked_at(described, form, monkeypatch):
    many = copy.deepcopy(described)
    layers = layers_of(many)
    place = many["operations"].index(layers)
    single = {"repeat": 1, "operations": layers["operations"][:1]}
    many["operations"][place : place + 1] = {
        "one entry": [{"repeat": 100_000, "operations": layers["operations"]}],
        "an entry each": [single] * 100_000,
        "no repetition": [*layers["operations"][:1] * 100_000, layers],
    }[form]
    monkeypatch.setattr(checks, "_check_entry", lambda *_: pytest.fail("an entry was looked at"))
    with pytest.raises(UnreadableFileError, match="expected 1 to 4096 layers"):
        check_description(many, "here")


def layers_of(described):
    return next(one for one in described["operations"] if "repeat" in one)


def appended(described, **entry):
    described["operations"].append({"inputs": ["logits"], "output": "logits", **entry})


def between(described):
    layers = layers_of(described)
    more = [{"op": "add", "inputs": ["x"], "output": "x"}, layers]
    place = described["operations"].index(layers) + 1
    described["operations"][place:place] = more


BAD = {
    "an unknown operation": lambda d: operation(d, "norm").update(op="braid"),
    "a missing field": lambda d: operation(d, "linear").pop("in"),
    "a field of another type": lambda d: operation(d, "linear").update({"in": "32"}),
    "a truth for a size": lambda d: operation(d, "softmax").update(heads=True),
    "a size below one": lambda d: operation(d, "softmax").update(heads=0),
    "a size that no network has": lambda d: operation(d, "softmax").update(heads=10**9),
    "a context that no network has": lambda d: d.update(context_length=2**62),
    "an unknown choice": lambda d: operation(d, "activation").update(function="swish"),
    "a value that nothing writes": lambda d: operation(d, "norm").update(inputs=["y"]),
    "a value of another kind": lambda d: operation(d, "norm").update(inputs=["tokens"]),
    "too many inputs": lambda d: operation(d, "norm").update(inputs=["x", "x"]),
    "a name that is given": lambda d: operation(d, "norm").update(output="tokens"),
    "a missing weight": lambda d: operation(d, "linear").pop("weights"),
    "an unknown role": lambda d: operation(d, "linear")["weights"].update(gain="final_norm.bias"),
    "a number for a weight": lambda d: operation(d, "linear")["weights"].update({"weight?": 5}),
    "a tensor that is not there": lambda d: operation(d, "norm")["weights"].update(weight="w"),
    "a tensor of another shape": lambda d: d["tensors"]["final_norm.weight"].update(shape=[31]),
    "a product of another width": lambda d: operation(d, "linear").update({"in": 33}),
    "heads beyond the channels": lambda d: operation(d, "split_heads").update(start=90),
    "an odd number of channels that turn": lambda d: operation(d, "rotate").update(channels=3),
    "a base of no positions": lambda d: operation(d, "rotate").update(base=-2.0),
    "a negative epsilon": lambda d: operation(d, "norm").update(epsilon=-1.0),
    "a temperature without a tensor": lambda d: operation(d, "scores").pop("weights"),
    "a tensor without a temperature": lambda d: operation(d, "scores").update(temperature=False),
    "a vocabulary beyond the table": lambda d: d.update(vocab_size=257),
    "no repetition": lambda d: layers_of(d).update(repeat=0),
    "a hundred million repetitions": lambda d: layers_of(d).update(repeat=10**8),
    "repetitions of nothing": lambda d: layers_of(d).update(repeat=2**62, operations=[]),
    "an operation between the layers": between,
    "numbers for other layers": lambda d: operation(d, "norm").update(epsilon=[1e-5]),
    "heads in uneven groups": lambda d: operation(d, "scores").update(key_heads=3),
    "no logits": lambda d: d["operations"].pop(),
    "something after the logits": lambda d: appended(d, op="scale", factor=2.0),
    "no operations": lambda d: d.update(operations=None),
    "a negative context": lambda d: d.update(context_length=-1),
}


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_description_is_refused_in_one_line(what, described):
    check_description(copy.deepcopy(described), "network.json")
    with pytest.raises(UnreadableFileError) as error:
        check_description(changed(described, BAD[what]), "network.json")
    assert "\n" not in str(error.value) and "network.json" in str(error.value)
    assert "expected" in str(error.value)


def test_a_list_holds_one_number_per_layer():
    model = trained("SM+LR(layer)")
    network = aero.models.network_writer.described_network(model)
    slopes = [one["slope"] for one in network.operations() if one.op == "activation"]
    assert slopes == [block.mlp.negative_slope.item() for block in model.transformer.blocks()]
    assert len(set(slopes)) == 2
    assert np.array_equal([one["factor"] for one in network.operations() if one.op == "scale"], [])


def test_a_slope_that_was_learned_below_zero_is_read_back(tmp_path):
    model = trained("SM+LR(layer)")
    model.transformer.blocks()[0].mlp.negative_slope.data.fill_(-0.25)
    network = read_network(aero.export_weights(model, tmp_path / "made"))
    slopes = [one["slope"] for one in network.operations() if one.op == "activation"]
    assert slopes[0] == -0.25 < 0 < slopes[1]
    tokens = torch.arange(2 * 16).reshape(2, 16)
    with torch.no_grad():
        expected = model(tokens).logits
    np.testing.assert_allclose(numpy_reader.forward(network, tokens.numpy()), expected, atol=1e-9)


def test_weights_that_are_not_finite_or_come_from_elsewhere_are_refused(tmp_path):
    folder = aero.export_weights(trained("SM(t:head)+ScFuFFN"), tmp_path / "good")
    weights = safetensors.numpy.load_file(folder / "weights.safetensors")
    for message, value in (("finite numbers", np.nan), ("one temperature per head", 7.0)):
        bad = {name: tensor.copy() for name, tensor in weights.items()}
        bad["layers.1.attention.inverse_temperature"][0, 3] = value
        content = safetensors.numpy.save(bad)
        (folder / "weights.safetensors").write_bytes(content)
        described = json.loads((folder / "network.json").read_text())
        described["weights"]["sha256"] = hashlib.sha256(content).hexdigest()
        (folder / "network.json").write_text(json.dumps(described))
        with pytest.raises(UnreadableFileError, match=message):
            read_network(folder)
    os.mkfifo(folder / "pipe")
    for name, message in (("", "plain"), ("..", "plain"), ("a/b", "plain"), ("pipe", "is not")):
        described["weights"]["file"] = name
        (folder / "network.json").write_text(json.dumps(described))
        with pytest.raises(ValueError, match=message):
            read_network(folder)
