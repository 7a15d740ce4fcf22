"""The cost of encryption: bytes through the parties' connection over loopback, plain and by TLS.

    python benchmarks/private_tunnel.py --output build/private_tunnel.json

Four processes as in a run: two supervisors, which hold the ends of the tunnel, and behind each what
takes SPU's place, one that sends and one that receives. Processor seconds are the supervisors'.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aero.internals.atomic_files import write_json_atomically
from aero.private.links.channel import Channel
from aero.private.links.connections import accept, connect, listen
from aero.private.links.keys import CERTIFICATE, Security, make_keys
from aero.private.links.tunnel import Tunnel

BLOCK = bytes(1 << 18)
SECONDS = 60.0


def main() -> None:
    """Measures both several times in turn, prints the fastest run of each and writes all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "TLS 1.3": []}
    for _ in range(chosen.rounds):
        for name, found in runs.items():
            found.append(measure(chosen.megabytes << 20, encrypted=name != "plain"))
            print(name, found[-1], file=sys.stderr, flush=True)
    print("| connection | MB/s | CPU s per GB, both supervisors |\n| --- | --- | --- |")
    for name, found in runs.items():
        fastest = max(run["megabytes_per_second"] for run in found)
        least = min(run["cpu_seconds_per_gb"] for run in found)
        print(f"| {name} | {fastest:.0f} | {least:.2f} |")
    write_json_atomically(chosen.output, {"megabytes": chosen.megabytes, "runs": runs})


def measure(size: int, *, encrypted: bool) -> dict[str, float]:
    """One way through the tunnel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys: list[Security | None] = [None, None]
        if encrypted:
            one, other = folder / "one", folder / "other"
            for each in (one, other):
                make_keys(each)
            keys = [Security(one, other / CERTIFICATE), Security(other, one / CERTIFICATE)]
        load = os.getloadavg()[0]
        with listen("127.0.0.1:0") as listener:
            address = "{}:{}".format(*listener.getsockname()[:2])
            results = [os.pipe() for _ in range(2)]
            jobs: list[Any] = [
                lambda: _server(listener, keys[0], folder / "server", size),
                lambda: _client(address, keys[1], folder / "client", size),
            ]
            children = [_child(job, pipe) for job, pipe in zip(jobs, results, strict=True)]
        said = []
        for child, (reader, writer) in zip(children, results, strict=True):
            os.close(writer)
            with os.fdopen(reader) as lines:
                said.append(json.loads(lines.read()))
            os.waitpid(child, 0)
    used = sum(each["cpu_seconds"] for each in said)
    return {
        "megabytes_per_second": size / 1e6 / max(each["seconds"] for each in said),
        "cpu_seconds_per_gb": used / (size / 1e9),
        "load": load,
    }


def _child(job: Any, pipe: tuple[int, int]) -> int:
    """A process that does the job and reports its time."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            seconds = asyncio.run(asyncio.wait_for(job(), SECONDS))
            used = resource.getrusage(resource.RUSAGE_SELF)
            said = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime}
            os.write(pipe[1], json.dumps(said).encode())
            code = 0
        os._exit(code)
    return child


async def _server(
    listener: socket.socket, security: Security | None, folder: Path, size: int
) -> float:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    channel = await accept(connection, security, SECONDS)
    folder.mkdir()
    async with Tunnel(channel, folder) as tunnel:
        path, (done, end) = tunnel.own.removeprefix("unix:"), os.pipe()
        with socket.socket(socket.AF_UNIX) as sink:
            sink.bind(path)
            sink.listen()
            _fork(lambda: _take(sink, size, end))
            channel.post(go="session")
            return await _carried(channel, tunnel, done)


async def _client(address: str, security: Security | None, folder: Path, size: int) -> float:
    channel = await connect(address, security, SECONDS, lambda: None)
    folder.mkdir()
    await channel.next_message(SECONDS, "go")
    async with Tunnel(channel, folder) as tunnel:
        path, (done, end) = tunnel.peer.removeprefix("unix:"), os.pipe()
        _fork(lambda: _give(path, size, end))
        return await _carried(channel, tunnel, done)


async def _carried(channel: Channel, tunnel: Tunnel, done: int) -> float:
    """Seconds until the process behind this end is done."""

    async def follow() -> None:
        while True:
            stream, content = await channel.receive()
            if stream:
                await tunnel.take(stream, content)

    start, loop, ended = time.perf_counter(), asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(done, ended.set)
    following = asyncio.create_task(follow())
    await ended.wait()
    seconds = time.perf_counter() - start
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return seconds


def _fork(job: Any) -> None:
    if os.fork() == 0:
        job()
        os._exit(0)


def _give(path: str, size: int, done: int) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        for _ in range(size // len(BLOCK)):
            end.sendall(BLOCK)
        end.recv(1)  # the other end has all
    os.write(done, b"1")


def _take(sink: socket.socket, size: int, done: int) -> None:
    end, _ = sink.accept()
    left = size // len(BLOCK) * len(BLOCK)
    while left:
        left -= len(end.recv(1 << 20))
    end.sendall(b"1")
    time.sleep(0.2)  # until it is there
    os.write(done, b"1")


if __name__ == "__main__":
    main()
