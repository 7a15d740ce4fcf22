"""`aero.network.folding`: the folded network computes the same function in fewer operations."""

import numpy as np
import pytest

import aero
from aero.network import numpy_reader
from aero.network.description import POSITIONS, TOKENS, Network
from aero.network.files import read_network
from aero.network.folding import Folding, folded_steps, with_blank_weights
from aero.network.numpy_reader import forward

from ..export.conftest import tokens, trained
from ..models.labels import FAMILIES, LABELS

FOLDINGS = {
    "private": Folding(),
    "private, scores": Folding(score_scale=True),
    "ring": Folding(head_temperatures=False, stream="joined", shared_norms=False),
}


def computed(steps):
    """The logits of folded operations, each as the NumPy reader computes it."""
    ids = tokens(1).numpy()
    values = {TOKENS: ids, POSITIONS: np.arange(ids.shape[1])[None]}
    for step in steps:
        one = step.operation
        inputs = (values[name] for name in one.inputs)
        values[one.output] = numpy_reader.OPERATIONS[one.op](one, step.weights, *inputs)
    return values[steps[-1].operation.output]


def assert_logits_are_kept(network, steps):
    expected = forward(network, tokens(1))
    # Float64 rounding, times the growth of a few dozen operations.
    assert np.abs(computed(steps) - expected).max() <= 1e-12 * np.abs(expected).max()


def shapes(steps):
    return [(one.operation, {role: x.shape for role, x in one.weights.items()}) for one in steps]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", LABELS)
def test_folding_keeps_the_logits_of_every_label(label, family, tmp_path):
    network = read_network(aero.export_weights(trained(label, family), tmp_path))
    for name, folding in FOLDINGS.items():
        steps = folded_steps(network, folding)
        assert_logits_are_kept(network, steps)
        found = [step.operation for step in steps]
        if folding.stream == "deferred":
            assert not [one for one in found if one.op == "scale"], name
        norms = [one for one in found if one.fields.get("kind") == "diagonal"]
        assert not norms or network.description["spec"]["shaped_attention"], name
        for one in found:
            if one.op == "scores":
                assert one["temperature"] == ("inverse_temperature" in one.weights) or (
                    not one["per_position"]
                )
                assert (one["scale"] == 1.0) == folding.score_scale
        # The other party comes to the same network from the description alone.
        assert shapes(folded_steps(with_blank_weights(network.description), folding)) == shapes(
            steps
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("label", ["SM+LN+ScFuFFN", "SM+ScFFN", "SM+FN+ScFuFFN"])
@pytest.mark.parametrize("factors", [(-0.5, 2.0), (0.0, 1.5), (1e-3, 3.0), (8.0, 8.0)])
def test_factors_that_would_cost_accuracy_stay_outside_the_weights(
    label, family, factors, tmp_path
):
    network = read_network(aero.export_weights(trained(label, family), tmp_path))
    [layers] = [one for one in network.description["operations"] if "repeat" in one]
    for one in layers["operations"]:
        if one.get("name") == "beta":
            one["factor"] = list(factors)
    steps = folded_steps(network, Folding())
    assert_logits_are_kept(network, steps)
    kept = {0.0: [0.0], 1e-3: [1e-3], 8.0: [8.0]}.get(factors[0], [])
    assert [one.operation["factor"] for one in steps if one.operation.op == "scale"] == kept


def test_scaled_embeddings_exact_gelu_pruned_layers_and_head_biases_are_kept(tmp_path):
    models = (
        trained("SM+LN+G", gelu_approximation="none", layer_norm_epsilon=1e-3),
        trained("SM+ScFuFFN_i1", pruned_ffn_layers=[0], embedding_scale=3.0),
        trained("SM+ScFuFFN", tied_embeddings=False),
        aero.fold_norm(trained("SM+FN+ScFuFFN")),
    )
    for number, model in enumerate(models):
        network = read_network(aero.export_weights(model, tmp_path / str(number)))
        for folding in FOLDINGS.values():
            assert_logits_are_kept(network, folded_steps(network, folding))


def network_of(*layer, head="x"):
    """A network of 4 channels and 2 heads of 2, whose layer is given."""
    rng = np.random.default_rng(0)
    operations = [
        {"op": "embed", "inputs": ["tokens"], "output": "x", "rows": 256, "width": 4,
         "weights": {"weight": "table"}},
        {"repeat": 1, "operations": list(layer)},
        linear("logits", head, "head"),
    ]  # fmt: skip
    names = [name for one in (*operations[1]["operations"], operations[2])
             for name in one.get("weights", {}).values()]  # fmt: skip
    tensors = {name: rng.standard_normal((4, 4)) for name in names}
    tensors["table"] = rng.standard_normal((256, 4))
    tensors |= {name: rng.standard_normal(4) for name in names if name.startswith("norm")}
    described = {"operations": operations, "context_length": 32, "vocab_size": 256}
    return Network(described, tensors)


def linear(output, given, name):
    return {"op": "linear", "inputs": [given], "output": output, "in": 4, "out": 4,
            "transposed": False, "weights": {"weight": name}}  # fmt: skip


def scale(output, given, factor):
    return {"op": "scale", "inputs": [given], "output": output, "factor": factor}


def shift(output, given):
    return {"op": "shift", "inputs": [given], "output": output, "tokens": 2}


def diagonal(output, given):
    return {"op": "norm", "inputs": [given], "output": output, "kind": "diagonal", "width": 4,
            "epsilon": 0.0, "weights": {"scale": f"norm {output}"}}  # fmt: skip


def add(output, *given):
    return {"op": "add", "inputs": list(given), "output": output}


def attention(queries, keys, values):
    sizes = {"heads": 2, "key_heads": 2, "head_dim": 2}
    return [
        {"op": "scores", "inputs": [queries, keys], "output": "scores", **sizes, "scale": 0.3,
         "temperature": False, "per_position": False, "soft_cap": 0.0},
        {"op": "softmax", "inputs": ["scores"], "output": "p", "heads": 2, "causal": True,
         "window": 0},
        {"op": "weighted_sum", "inputs": ["p", values], "output": "h", **sizes},
        {"op": "join_heads", "inputs": ["h"], "output": "x"},
    ]  # fmt: skip


def split(output, given):
    return {"op": "split_heads", "inputs": [given], "output": output, "start": 0, "heads": 2,
            "head_dim": 2}  # fmt: skip


AWKWARD = {
    "a factor of a factor": network_of(
        scale("a", "x", 2.0), scale("b", "a", 3.0), linear("y", "b", "w"), add("x", "a", "y")
    ),
    "a sum of one that two read": network_of(
        linear("y", "x", "w"), add("z", "y"), scale("a", "z", 2.0), add("x", "x", "z", "a")
    ),
    "a product that two read": network_of(
        linear("y", "x", "w"), scale("a", "y", 2.0), add("x", "x", "y", "a")
    ),
    "keys that are the queries' own columns": network_of(
        linear("y", "x", "w"), split("q", "y"), split("k", "y"), split("v", "x"),
        *attention("q", "k", "v"),
    ),
    "a factor before a shift": network_of(
        scale("a", "x", 2.0), shift("b", "a"), linear("y", "b", "w"), add("x", "a", "y", "b")
    ),
    "a norm that only products read, some after a shift": network_of(
        diagonal("a", "x"), shift("b", "a"), shift("c", "b"), linear("y", "c", "w"),
        linear("z", "a", "v"), add("x", "y", "z"),
    ),
    "a norm that a sum reads after a shift": network_of(
        diagonal("a", "x"), shift("b", "a"), linear("y", "b", "w"), add("x", "b", "y")
    ),
    "a norm of a shifted norm": network_of(
        diagonal("a", "x"), shift("b", "a"), diagonal("c", "b"), linear("y", "c", "w"),
        add("x", "x", "y"),
    ),
    "queries that are keys": network_of(
        linear("y", "x", "w"), split("q", "y"), split("v", "x"), *attention("q", "q", "v")
    ),
    "queries that no product makes": network_of(
        split("q", "x"), split("k", "x"), split("v", "x"), *attention("q", "k", "v")
    ),
}  # fmt: skip


@pytest.mark.parametrize("folding", FOLDINGS.values(), ids=FOLDINGS)
@pytest.mark.parametrize("network", AWKWARD.values(), ids=AWKWARD)
def test_networks_that_no_label_names_are_kept_too(network, folding):
    steps = folded_steps(network, folding)
    found, expected = computed(steps), forward(network, tokens(1))
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
