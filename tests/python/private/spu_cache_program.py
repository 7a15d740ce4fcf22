"""Runs in the private environment: passes that keep keys and values, beside whole passes.

Standard input: a JSON list of {"folder", "settings", "passes": [[tokens [B][T] of a pass], ...]}.
Prints for each pass the largest difference of its last logits from NumPy's over all tokens so far
and, with "walk", from SPU's of a whole pass, over the largest logit; the tokens; and the bytes.
"""

import contextlib
import functools
import json
import sys

import numpy as np

from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.compute.in_process import InProcessParties
from aero.private.compute.inference import PrivateNetwork, set_up
from aero.private.settings import PrivateSettings

SESSIONS = contextlib.ExitStack()


@functools.lru_cache(maxsize=1)
def session_with(settings, number):
    """The last one where its settings were the same: a set-up takes as long as two layers."""
    SESSIONS.close()  # SPU counts the bytes of one alone
    parties = SESSIONS.enter_context(
        contextlib.closing(InProcessParties(PrivateSettings(**json.loads(settings))))
    )
    set_up(parties)
    return parties


def computed(number, job):
    # Of SEMI2K's weights a session keeps what it opened.
    number = number if job["settings"].get("protocol") == "semi2k" else None
    parties = session_with(json.dumps({"reveal": "all", **job["settings"]}), number)
    network = read_network(job["folder"])
    kept, walked = PrivateNetwork(parties, network), None
    if job.get("walk"):
        walked = PrivateNetwork(parties, network)
    read, found = None, []
    for index, tokens in enumerate(job["passes"]):
        new = np.asarray(tokens, np.int32)
        read = new if read is None else np.concatenate([read, new], axis=1)
        result = kept.read_on(new) if index else kept.run(new)
        plain = forward(network, read)[:, -1]
        largest = np.abs(plain).max()
        one = {
            "tokens": result.tokens.tolist(),
            "plain_tokens": plain.argmax(-1).tolist(),
            "difference": float(np.abs(result.logits[:, -1] - plain).max() / largest),
            "bytes": {call.name: call.traffic.comm_bytes for call in result.calls},
            "seconds": sum(call.seconds for call in result.calls),
        }
        if walked is not None:
            whole = walked.run(read).logits[:, -1]
            one["walk"] = float(np.abs(result.logits[:, -1] - whole).max() / largest)
        found.append(one)
    return found


print(json.dumps([computed(*job) for job in enumerate(json.load(sys.stdin))]))
