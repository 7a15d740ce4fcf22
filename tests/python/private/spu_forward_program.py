"""Runs in the private environment: networks under SPU beside plain JAX.

Standard input: a JSON list of {"folder", "settings", "tokens", "new_tokens"}. Prints for each its
tokens, the differences from plain JAX and from NumPy over the largest logit, and the bytes.
"""

import contextlib
import functools
import json
import sys
from unittest import mock

import jax.numpy as jnp
import numpy as np

from aero.network.files import read_network
from aero.network.numpy_reader import forward as numpy_forward
from aero.private.compute.in_process import InProcessParties
from aero.private.compute.inference import PrivateNetwork, set_up
from aero.private.compute.pieces import forward, network_pieces
from aero.private.settings import PrivateSettings

SESSIONS = contextlib.ExitStack()


def exact(network, settings, tokens):
    """Plain JAX, but exp as the power that SPU computes."""
    powers = 2**settings.exp_squarings
    with mock.patch.object(jnp, "exp", lambda x: (1 + x / powers) ** powers):
        return np.asarray(forward(network_pieces(network, settings), tokens)[0])


@functools.lru_cache(maxsize=1)
def session_with(settings):
    """The last one where its settings were the same: a set-up takes as long as two layers."""
    SESSIONS.close()  # SPU counts the bytes of one alone
    parties = SESSIONS.enter_context(
        contextlib.closing(InProcessParties(PrivateSettings(**json.loads(settings))))
    )
    set_up(parties)
    return parties


def computed(job):
    parties = session_with(json.dumps({"reveal": "all", **job["settings"]}))
    settings = parties.settings
    network = read_network(job["folder"])
    private = PrivateNetwork(parties, network)
    tokens, passes = list(job["tokens"]), []
    for _ in range(job.get("new_tokens", 1)):
        found = private.run(np.asarray([tokens], np.int32))
        [logits] = found.logits
        rows = slice(-1, None) if settings.last_token_head else slice(None)
        plain = np.atleast_2d(numpy_forward(network, [tokens])[0])[rows]  # one row of a pool
        largest = np.abs(plain).max()
        passes.append(
            {
                "token": None if found.tokens is None else int(found.tokens[0]),
                "plain_token": int(plain[-1].argmax()),
                "own_token": int(logits[-1].argmax()),
                "arithmetic": float(
                    np.abs(logits - exact(network, settings, tokens)).max() / largest
                ),
                "difference": float(np.abs(logits - plain).max() / largest),
                "bytes": {call.name: call.traffic.comm_bytes for call in found.calls},
            }
        )
        tokens.append(int(logits[-1].argmax()))
    return passes


print(json.dumps([computed(job) for job in json.load(sys.stdin)]))
