"""Runs in the private environment: in one process, the server fails within a run.

Prints the caller's error; the client's thread still waits when this process ends.
"""

import json

import numpy as np

from aero.private.compute.calls import Party
from aero.private.compute.in_process import InProcessParties
from aero.private.party_errors import PartyError

parties = InProcessParties()
value = parties.put("x", np.ones(8, np.float32), Party.CLIENT)
parties.run("product", lambda x: x * x, value)
parties._sides[Party.SERVER].runtime.del_var(value.name)
try:
    parties.run("product", lambda x: x * x, value)
except PartyError as error:
    print(json.dumps(str(error)), flush=True)
finally:
    parties.close()
