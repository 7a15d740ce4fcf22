"""A party as a program: takes its job as a line of JSON, reports events, ends with its caller.

`{"party": "server", "python": ..., ...}` with the private environment's Python and the fields of
`PartyJob`; a server or helper serves one client. Events are those of `serve` and `ask`, last `Done`
or `Failed`.
"""

from __future__ import annotations

from pathlib import Path

from aero.private.parties.events import Done, Failed
from aero.private.parties.party import PartyJob, ask
from aero.private.parties.serving import serve
from aero.private.parties.worker_pipe import WorkerPipe
from aero.private.party_errors import PartyError


def main() -> None:
    """Takes part in one run."""
    pipe = WorkerPipe()
    fields = pipe.job()
    pipe.listen()
    party, python = fields.pop("party"), Path(fields.pop("python"))
    job = PartyJob.from_dict(fields)

    try:
        if party != "client":
            serve(job, pipe.say, python, once=True)
        else:
            ask(job, pipe.say, python)
    except (PartyError, ValueError, OSError) as error:
        pipe.say(Failed(str(error)))
    else:
        pipe.say(Done())


if __name__ == "__main__":
    main()
