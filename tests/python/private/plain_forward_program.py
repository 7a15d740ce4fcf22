"""Runs in the private environment: the JAX forward pass, without SPU, beside NumPy's.

Arguments: folder of exports. Prints, by export and settings, the largest difference over the
largest logit, also of passes over 11, 1 and 7 tokens that keep what later ones see and, where
something reads lengths, of tokens of which the last are padding, and whether the next token is the
same. A network that pools has one row; of one that ends in argmax the places are compared too.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from aero.network.description import not_continued
from aero.network.files import read_network
from aero.network.numpy_reader import forward as numpy_forward
from aero.private.compute.pieces import Rows, forward, network_pieces
from aero.private.settings import PrivateSettings

SETTINGS = {
    "standard": PrivateSettings(),
    "changed": PrivateSettings(
        fold_score_scale=True, client_one_hot=True, last_token_head=True, exp_clip=False
    ),
}


def in_passes(network, settings, passes):
    """The last logits of passes that follow each other."""
    earlier, start = {}, 0
    for tokens in passes:
        value = jnp.asarray(tokens, jnp.int32)[None]
        for piece in network_pieces(network, settings):
            if isinstance(piece.function, Rows):
                rows = replace(piece.function, start=start)
                weights = {name: jnp.asarray(tensor) for name, tensor in piece.weights.items()}
                kept = earlier.get(piece.name, ())
                value, earlier[piece.name] = rows(weights, value, kept)
        start += len(tokens)
    return value[0, -1]


# Beside these, where attention has every form: once in each family.
IN_BLOCKS = PrivateSettings(attention_block=4)
ATTEND_BY_BLOCKS = ("attention", "bloom", "mistral", "gpt2", "delayed")
OWN = 13


def reads_lengths(network):
    return any("lengths" in operation.inputs for operation in network.operations())


def logits_of(network, tokens, lengths=None):
    """NumPy's, [T, V] or [1, V]; in front of an argmax."""
    *_, end = network.operations()
    operations = network.description["operations"]
    kept = operations[:-1] if end.op == "argmax" else operations
    kept = [*kept[:-1], {**kept[-1], "output": "logits"}]
    before = replace(network, description={**network.description, "operations": kept})
    return np.atleast_2d(numpy_forward(before, [tokens], lengths)[0])


found = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    network = read_network(folder)
    tokens = np.random.default_rng(0).integers(0, 256, 19)
    *_, end = network.operations()
    pools = any(operation.op == "pool" for operation in network.operations())
    chooses, continued = end.op == "argmax", not_continued(network.operations()) is None
    expected = logits_of(network, tokens)
    blocks = {"in blocks": IN_BLOCKS} if folder.name.startswith(ATTEND_BY_BLOCKS) else {}
    for name, settings in {**SETTINGS, **blocks}.items():
        logits, token = forward(network_pieces(network, settings), tokens)
        rows = expected[-1:] if settings.last_token_head else expected
        assert logits.shape == rows.shape
        off = float(np.abs(logits - rows).max() / np.abs(rows).max())
        if continued:
            last = in_passes(network, settings, np.split(tokens, (11, 12)))
            off = max(off, float(np.abs(last - rows[-1]).max() / np.abs(rows).max()))
        if chooses:
            places = np.atleast_1d(numpy_forward(network, [tokens])[0])[-len(rows) :]
            assert np.array_equal(token, places)
            token = token[-1]
        if reads_lengths(network):
            padded, _ = forward(network_pieces(network, settings), tokens, OWN)
            rows = logits_of(network, tokens, [OWN])[-len(rows) :]
            off = max(off, float(np.abs(padded - rows).max() / np.abs(rows).max()))
        found[f"{folder.name} {name}"] = [off, int(token) == int(expected[-1].argmax())]
print(json.dumps(found))
