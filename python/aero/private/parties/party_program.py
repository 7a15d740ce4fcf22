"""A party as a program: takes a `PartyJob` as a line of JSON, reports events, ends with its caller.

Its argument is the private environment's Python; a server or helper serves one client. Events are
those of `serve` and `ask`, last `Done` or `Failed`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aero.private.compute.calls import Party
from aero.private.parties.events import Done, Failed
from aero.private.parties.party import PartyJob, ask
from aero.private.parties.serving import serve
from aero.private.parties.worker_pipe import WorkerPipe
from aero.private.party_errors import PartyError


def main() -> None:
    """Takes part in one run."""
    pipe = WorkerPipe()
    job, python = pipe.job(PartyJob), Path(sys.argv[1])
    pipe.listen()
    try:
        if job.party is not Party.CLIENT:
            serve(job, pipe.say, python, once=True)
        else:
            ask(job, pipe.say, python)
    except (PartyError, ValueError, OSError) as error:
        pipe.say(Failed(str(error)))
    else:
        pipe.say(Done())


if __name__ == "__main__":
    main()
