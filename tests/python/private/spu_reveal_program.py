"""Runs in the private environment: all that the client receives, for each output policy.

Standard input: {"folder", "tokens", "policies": [settings, ...]}. Prints for each policy the pass
as the client reports it, the shapes that were revealed with the bytes of each, and how the client's
own share of the logits correlates with them.
"""

import json
import sys

import msgspec
import numpy as np

from aero.network.files import read_network
from aero.network.numpy_reader import forward
from aero.private.compute.calls import Party
from aero.private.compute.in_process import InProcessParties
from aero.private.compute.inference import PrivateNetwork, set_up
from aero.private.parties.both_parties_worker import reported_pass
from aero.private.settings import PrivateSettings


class Watched(InProcessParties):
    """Keeps the revealed values, and the client's share of the head's result."""

    def __init__(self, settings):
        super().__init__(settings)
        self.revealed, self.share = [], np.zeros(0)

    def run(self, name, function, *arguments):
        results = super().run(name, function, *arguments)
        if name == "head":
            logits, _ = results
            share = self._sides[Party.CLIENT].runtime.get_var(logits.name)
            [chunk] = share.share_chunks  # a few bytes of header, then the ring's elements
            self.share = np.frombuffer(chunk[-8 * int(np.prod(logits.shape)) :], "<i8")
        return results

    def reveal(self, value):
        opened = super().reveal(value)
        self.revealed.append([list(opened.shape), self.calls[-1].traffic.server_bytes])
        return opened


job = json.load(sys.stdin)
network = read_network(job["folder"])
plain = forward(network, [job["tokens"]])[0]
found = []
for policy in job["policies"]:
    parties = Watched(PrivateSettings(**policy))
    set_up(parties)
    passed = PrivateNetwork(parties, network).run(np.asarray([job["tokens"]], np.int32))
    found.append(
        {
            "pass": msgspec.to_builtins(reported_pass(passed, 0)),
            "pieces": {call.name: call.traffic.comm_bytes for call in passed.calls},
            "revealed": parties.revealed,
            "share": [parties.share.size, float(np.corrcoef(parties.share, plain.ravel())[0, 1])],
        }
    )
    parties.close()
print(json.dumps(found))
