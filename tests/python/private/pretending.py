"""Workers that pretend to compute, a server of its own process, and clients in our hands."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from aero.private.links.keys import CERTIFICATE, Security, make_keys
from aero.private.parties.events import Event
from aero.private.parties.orders import told
from aero.private.parties.party import PartyJob, ask
from aero.private.parties.supervision import TimeLimits
from aero.private.parties.terms import PROTOCOL
from aero.private.settings import PrivateSettings

# In the place of the private environment's Python. SPU is one connection for each pass and pair of
# parties, which is echoed: the client's connects to the others', the helper's to the server's. The
# size of the first is random, and so is the size of its pieces.
PYTHON = """#!{python} -S
import ctypes, json, os, socket, sys, time
ctypes.CDLL(None).prctl(1, 9)  # it ends with its supervisor, however that ends
open(__file__ + ".starts", "a").write("x")
def say(event, **values): print(json.dumps({{"event": event, **values}}), flush=True)
job = json.loads(sys.stdin.readline())
settings = job["settings"]
say("terms", terms={{"exp_squarings": settings["exp_squarings"], "weights": None}})
told = json.loads(sys.stdin.readline())
open(__file__ + ".limits", "a").write(str(told["request"]["largest_product"]) + "\\n")
sequences = told["request"]["sequences"]
own, go = told["own"][5:], {{name: address[5:] for name, address in told["others"].items()}}
say("stage", stage="layer 0")
size = told["request"]["prompt_length"] * 100_000 + 100 * os.urandom(1)[0]
if job["party"] != "client":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(own)
    listener.listen()

def echo():
    connection, _ = listener.accept()
    while chunk := connection.recv(1 << 20):
        connection.sendall(chunk)
    connection.close()

def send(size, peer):
    sent = os.urandom(size)
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(peer)
        try:
            connection.sendall(sent[:1])
            if connection.recv(1):
                break
        except OSError:
            pass
        time.sleep(0.02)
    step = 2048 << os.urandom(1)[0] % 6
    for first in range(0, size, step):
        chunk, got = sent[first : first + step], b""
        connection.sendall(chunk)
        while len(got) < len(chunk) and (part := connection.recv(len(chunk) - len(got))):
            got += part
        assert got == chunk
    connection.close()

index, read = 0, [1]
while read:
    if job["party"] == "server":
        for peer in go:
            echo()
    elif job["party"] == "helper":
        echo()
        send(100, go["server"])
    else:
        for peer in go.values():
            send(100 if index else size, peer)
        if not index:
            say("stage", stage="revealed")
        say("pass", index=index, token=index if sequences == 1 else [index] * sequences)
    say("computed", cpu_seconds=0.0)
    index, told = index + 1, json.loads(sys.stdin.readline())
    read = told["tokens" if job["party"] == "client" else "rows"]
say("done")
sys.stdin.read()
"""
SERVER = """
import os, signal, sys, threading
from pathlib import Path
from aero.private.parties.events import encoded
from aero.private.parties.orders import heard
from aero.private.parties.party import PartyJob
from aero.private.parties.serving import serve
# A shell ignores interrupts for what it starts in the background, and tests for their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
job = heard(sys.stdin.buffer.readline(), PartyJob)
out = sys.stdout.buffer
# It ends with the tests, however they end.
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
serve(job, lambda event: (out.write(encoded(event)), out.flush()), Path(sys.argv[1]))
"""
LIMITS = TimeLimits(connect=30, hello=20, ready=30, silence=20, stage=30)


def pretending_python(folder: Path) -> Path:
    """Makes a program that takes the private Python's place."""
    python = folder / "python"
    if not python.exists():  # a worker of an earlier server may be starting it: not to be written
        python.write_text(PYTHON.format(python=sys.executable))
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


class People:
    """Folders of keys, and who knows whom."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("server", "helper", "ann", "bob")
        self.fingerprint = {name: make_keys(folder / name) for name in names}

    def security(self, name: str, *known: str, third: str | None = None) -> Security:
        """Of `name`, who knows the certificates of `known` and of the third party."""
        listed = self.folder / f"{name}-knows.pem"
        listed.write_bytes(b"".join((self.folder / k / CERTIFICATE).read_bytes() for k in known))
        listed.chmod(0o644)
        return Security(self.folder / name, listed, third and self.folder / third / CERTIFICATE)


class Served:
    """A server with its events, which runs until it is ended."""

    def __init__(self, export: Path, python: Path, **job: Any) -> None:
        given = {"address": "127.0.0.1:0", "limits": LIMITS, "settings": PrivateSettings(), **job}
        self.job = PartyJob(export, **given)
        self.python = python
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(told(self.job).decode())
        self.process.stdin.flush()
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.wait_for("listening")["address"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event of a kind."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = [event for event in list(self.events) if event["event"] == kind]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, f"the server has ended: {self.events}"
            time.sleep(0.01)
        raise AssertionError(f"no {kind} number {count} in {self.events[-20:]}")

    def ask(
        self, on_event: Any = lambda event: None, reads: Any = None, **job: Any
    ) -> list[dict[str, Any]]:
        """An honest client."""
        events: list[dict[str, Any]] = []
        given = {"tokens": (1, 2, 3), "new_tokens": 1, "settings": PrivateSettings(), **job}
        mine = PartyJob(self.job.folder, address=self.address, limits=LIMITS, **given)

        def take(event: Event) -> None:
            events.append(msgspec.to_builtins(event))
            on_event(events[-1])

        ask(mine, take, self.python, reads)
        return events

    def connect(self) -> socket.socket:
        """A stranger."""
        host, port = self.address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=30)

    def say_hello(self, security: Security, **request: int) -> ssl.SSLSocket:
        """A known client in our hands, which has said a hello and goes on with nothing."""
        context = security.context(server=False)
        connection = context.wrap_socket(self.connect())
        asked = {"prompt_length": 3, "new_tokens": 1} | request
        connection.sendall(client_hello(request=asked))
        return connection

    def starts(self) -> int:
        """How many workers have started, the clients' too."""
        return len(Path(f"{self.python}.starts").read_text())

    def limits(self) -> list[int]:
        """The largest products that the workers were told of, the clients' too."""
        return [int(line) for line in Path(f"{self.python}.limits").read_text().splitlines()]

    def sockets(self) -> int:
        """How many it has open."""
        found = 0
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found += str(descriptor.readlink()).startswith("socket:")
        return found

    def memory(self, field: str = "VmHWM") -> int:
        """Bytes: the most that were resident, or now with "VmRSS"."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(field + ":")]
        return int(line.split()[1]) * 1024

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            self._reader.join(5)
            pipe.close()


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack("!II", stream, len(content)) + content


def said(**message: Any) -> bytes:
    return frame(0, json.dumps(message).encode())


def client_hello(**changes: Any) -> bytes:
    """An honest client's first message."""
    terms = {"exp_squarings": 8, "weights": None}
    request = {"prompt_length": 3, "new_tokens": 1}
    whole = {"protocol": PROTOCOL, "role": "client", "terms": terms, "request": request}
    return said(hello={**whole, **changes})


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    found = b""
    try:
        while chunk := connection.recv(1 << 16):
            found += chunk
    except ConnectionResetError:
        pass
    return found


class Eavesdropper:
    """Between a client and the server: passes everything on and keeps it."""

    def __init__(self, server: str) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.heard = bytearray()
        self.counts = {"client": 0, "server": 0}
        self._server = server
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        client, _ = self.listener.accept()
        host, port = self._server.rsplit(":", 1)
        server = socket.create_connection((host, int(port)))
        for sender, ends in (("client", (client, server)), ("server", (server, client))):
            threading.Thread(target=self._copy, args=(sender, *ends), daemon=True).start()

    def _copy(self, sender: str, source: socket.socket, destination: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side may be gone by then
            while chunk := source.recv(1 << 16):
                self.heard += chunk
                self.counts[sender] += len(chunk)
                destination.sendall(chunk)
            destination.shutdown(socket.SHUT_WR)
