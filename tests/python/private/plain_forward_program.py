"""Runs in the private environment: the JAX forward pass, without SPU, beside NumPy's.

Arguments: folder of exports. Prints, by export and settings, the largest difference over the
largest logit, and whether the next token is the same.
"""

import json
import sys
from pathlib import Path

import numpy as np

from aero.network.files import read_network
from aero.network.numpy_reader import forward as numpy_forward
from aero.private.compute.pieces import forward, network_pieces
from aero.private.settings import PrivateSettings

SETTINGS = {
    "standard": PrivateSettings(),
    "changed": PrivateSettings(
        fold_score_scale=True, client_one_hot=True, last_token_head=True, exp_clip=False
    ),
}

found = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    network = read_network(folder)
    tokens = np.random.default_rng(0).integers(0, 256, 19)
    expected = numpy_forward(network, [tokens])[0]
    for name, settings in SETTINGS.items():
        logits, token = forward(network_pieces(network, settings), tokens)
        rows = expected[-1:] if settings.last_token_head else expected
        assert logits.shape == rows.shape
        off = float(np.abs(logits - rows).max() / np.abs(rows).max())
        found[f"{folder.name} {name}"] = [off, int(token) == int(expected[-1].argmax())]
print(json.dumps(found))
