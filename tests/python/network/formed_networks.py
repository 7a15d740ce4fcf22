"""Networks of one layer whose attention has each form of scores and softmax."""

import numpy as np

from aero.network.description import LENGTHS, Operation, network_of

B, H, G, T, D = 2, 4, 2, 7, 3
CONTEXT, VOCABULARY = 32, 256
OWN = np.array([7, 4])


def values(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


BIAS, SINK = values(H, 2 * CONTEXT - 1), values(H, seed=1)
ATTENTION = {
    "plain": {},
    "both sides": {"causal": False},
    "window": {"window": 3},
    "window of both sides": {"window": 2, "causal": False},
    "soft cap": {"cap": 0.7},
    "bias": {"bias": BIAS},
    "bias of both sides": {"bias": BIAS, "causal": False},
    "sink": {"sink": SINK},
    "lengths": {"lengths": OWN},
    "lengths of both sides": {"lengths": OWN, "causal": False},
    "rows without keys": {"lengths": np.array([7, 1]), "window": 2},
    "all": {"cap": 0.9, "window": 3, "bias": BIAS, "sink": SINK, "lengths": OWN},
}  # fmt: skip
PLAIN = {
    "scale": 0.8, "cap": 0.0, "causal": True, "window": 0, "bias": None, "sink": None,
    "lengths": None,
}  # fmt: skip


def operations_of(form):
    """Scores, softmax and weighted sum of a form, as a description has them."""
    chosen = PLAIN | ATTENTION[form]
    sizes = {"heads": H, "key_heads": G, "head_dim": D}
    scores = {**sizes, "scale": chosen["scale"], "temperature": False, "per_position": False}
    weights = {role: f"the {role}" for role in ("bias", "sink") if chosen[role] is not None}
    padding = () if chosen["lengths"] is None else (LENGTHS,)
    softmax = {"heads": H, "causal": chosen["causal"], "window": chosen["window"]}
    return [
        Operation("scores", {**scores, "soft_cap": chosen["cap"]}, ("q", "k"), "s"),
        Operation("softmax", softmax, ("s", *padding), "p", weights),
        Operation("weighted_sum", sizes, ("p", "v"), "y"),
    ]


# Heads of encoders: what pools, and whether the largest is chosen; both read `lengths`.
HEADS = {
    "first": ("first", False),
    "last": ("last", False),
    "mean": ("mean", False),
    "class": ("mean", True),
    "token by token": (None, True),
}


def headed(head, padded=True):
    """An encoder of one layer that pools, or ends in argmax, or both."""
    network, (kind, chooses) = (
        whole("lengths of both sides" if padded else "both sides"),
        HEADS[head],
    )
    operations = network.description["operations"]
    if kind is not None:
        operations.insert(-1, {"op": "pool", "inputs": ["x", *[LENGTHS] * padded], "output": "x",
                               "kind": kind})  # fmt: skip
    if chooses:
        operations[-1]["output"] = "y"
        operations.append({"op": "argmax", "inputs": ["y"], "output": "logits",
                           "width": VOCABULARY, "part": "argmax"})  # fmt: skip
    return network


def whole(form):
    """A language model of one layer whose attention has this form."""
    width, random = H * D, np.random.default_rng(0)
    tensors = {
        "table": random.standard_normal((VOCABULARY, width)),
        "layers.0.qkv": random.standard_normal((width, (H + 2 * G) * D)) / width**0.5,
        "head": random.standard_normal((width, VOCABULARY)) / width**0.5,
        "the bias": BIAS,
        "the sink": SINK,
    }
    operations = operations_of(form)
    tensors = {
        name: x for name, x in tensors.items()
        if not name.startswith("the ") or name in operations[1].weights.values()
    }  # fmt: skip
    layer = [
        {"op": "linear", "inputs": ["x"], "output": "all", "in": width, "out": (H + 2 * G) * D,
         "transposed": False, "weights": {"weight": "layers.{layer}.qkv"}, "part": "qkv/proj"},
    ]  # fmt: skip
    start = 0
    for name, heads in (("q", H), ("k", G), ("v", G)):
        layer.append({"op": "split_heads", "inputs": ["all"], "output": name, "start": start,
                      "heads": heads, "head_dim": D})  # fmt: skip
        start += heads * D
    parts = {"scores": "QK", "softmax": "softmax", "weighted_sum": "PV"}
    layer += [
        {"op": one.op, "inputs": list(one.inputs), "output": one.output, "part": parts[one.op],
         "weights": one.weights, **one.fields}
        for one in operations
    ] + [
        {"op": "join_heads", "inputs": ["y"], "output": "y"},
        {"op": "add", "inputs": ["x", "y"], "output": "x"},
    ]  # fmt: skip
    described = [
        {"op": "embed", "inputs": ["tokens"], "output": "x", "rows": VOCABULARY, "width": width,
         "weights": {"weight": "table"}, "part": "embed"},
        {"repeat": 1, "operations": layer},
        {"op": "linear", "inputs": ["x"], "output": "logits", "in": width, "out": VOCABULARY,
         "transposed": False, "weights": {"weight": "head"}, "part": "lm head"},
    ]  # fmt: skip
    return network_of(described, tensors, label=form, spec=None, context_length=CONTEXT,
                      vocab_size=VOCABULARY)  # fmt: skip
