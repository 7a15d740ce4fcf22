"""A disk without room: a limit on the size of files, in a child process.

Python keeps the truncated bytecode of a module that is first imported under such a limit, and no
later process can import it. So a limit is set in a child, after its imports, and the child writes
no bytecode at all.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

_BEGIN = """
import resource

def leave_no_room(most_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
"""


def run_with_limit(program: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program in a child, where `leave_no_room(most_bytes)` sets the limit.

    Args:
        program: Python text; imports come before the limit.
        *arguments: `sys.argv[1:]` of the child.
    """
    text = _BEGIN + textwrap.dedent(program)
    command = [sys.executable, "-B", "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)
