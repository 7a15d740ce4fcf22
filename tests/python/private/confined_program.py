"""Tries, confined, what a worker must not be able to do; prints what happened to each as JSON."""

import ctypes
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

from aero.private.parties.confinement import confine


def outcome(action):
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "done"


def main():
    allowed, forbidden, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    own = allowed.with_name("own")
    own.mkdir()
    if len(sys.argv) > 4:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    try:
        missing = confine([allowed], own)
    except Exception as error:
        print(json.dumps({"refused": str(error)}))
        return
    found = {
        "missing": missing,
        "read its network": outcome((allowed / "network.json").read_text),
        "read a key": outcome((forbidden / "key.pem").read_text),
        "list another folder": outcome(lambda: list(forbidden.iterdir())),
        "write its own": outcome(lambda: (own / "log").write_text("x")),
        "start its own": outcome(lambda: subprocess.run([shutil.copy("/bin/true", own)])),
        "write": outcome(lambda: (allowed / "new").write_text("x")),
        "start a program": outcome(lambda: subprocess.run([sys.executable, "-c", ""])),
        "connect": outcome(lambda: socket.create_connection(("127.0.0.1", port))),
        "listen": outcome(lambda: socket.create_server(("127.0.0.1", 0))),
        "signal its supervisor": outcome(lambda: os.kill(os.getppid(), 0)),
        "look into its supervisor": outcome(Path(f"/proc/{os.getppid()}/exe").readlink),
        "listen at a local socket": outcome(
            lambda: socket.socket(socket.AF_UNIX).bind(sys.argv[1] + "/own")
        ),
        "import": outcome(lambda: __import__("decimal")),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
        "status": {
            line.split(":")[0]: line.split(":")[1].strip()
            for line in Path("/proc/self/status").read_text().splitlines()
        },
    }
    print(json.dumps(found))


main()
