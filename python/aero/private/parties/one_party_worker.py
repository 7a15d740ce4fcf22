"""The program of the private environment for one party of two or three.

Takes its job and what follows it, as `parties.orders` has them, and reports `parties.events`.
"""

from __future__ import annotations

import resource
import sys
import traceback
from pathlib import Path

from aero.private.parties.confinement import confine
from aero.private.parties.events import Done, Failed
from aero.private.parties.orders import OnePartyJob
from aero.private.parties.worker_pipe import WorkerPipe, most_memory
from aero.private.party_errors import PartyError
from aero.private.temporary import temporary_folder


def main() -> None:
    """Does the job; an error is the last event, without the values that it concerns."""
    pipe = WorkerPipe()
    job = pipe.job(OnePartyJob)
    try:
        _bound_memory(job.memory_bytes)
        with temporary_folder() as own:
            for missing in confine(_network_files(job.folder), own):
                print(f"this kernel: {missing}", file=sys.stderr, flush=True)
            pipe.listen()
            # NumPy starts threads.
            from aero.private.parties.taking_part import take_part

            take_part(job, pipe)
    except PartyError as error:
        pipe.say(Failed(str(error)))
    except Exception as error:
        # The text of other errors may quote secret values; their place in the code does not.
        traceback.print_tb(error.__traceback__, file=sys.stderr)
        print(type(error).__name__, file=sys.stderr, flush=True)
        pipe.say(Failed(f"{type(error).__name__} in the worker"))
    else:
        pipe.say(Done())


def _network_files(folder: Path) -> list[Path]:
    """A network's folder, and where links in it lead."""
    return [folder, *(each.resolve() for each in folder.iterdir() if each.is_symlink())]


def _bound_memory(most: int | None) -> None:
    """The other party's traffic may make SPU ask for any size: this process ends, not others."""
    limit = most_memory(most) * 5 // 4
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    Path("/proc/self/oom_score_adj").write_text("1000")  # the first that the system ends


if __name__ == "__main__":
    main()
