"""Two network namespaces joined by a wire of a given rate and delay, to run two parties in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aero.mpc import NetworkProfile
from aero.private.links import delay_line

CLIENT, SERVER = 0, 1


@dataclass(frozen=True)
class ShapedLink:
    """The two ends of a wire: client first, then server.

    Attributes:
        enter: per end, the words before a command that run it in that end's namespace.
        addresses: per end, its IPv4 address.
    """

    enter: tuple[list[str], list[str]]
    addresses: tuple[str, str] = delay_line.ADDRESSES


@contextmanager
def shaped_link(network: NetworkProfile) -> Iterator[ShapedLink]:
    """Makes a wire with the rates and the round trip of a network profile, for a block.

    Both ends are in network namespaces without a name, which the system removes with the last
    process that uses them: nothing stays, whatever happens to this program.

    Args:
        network: `uplink_mbps` is client to server. Frames count with their headers, as on Ethernet;
            nothing is lost or reordered, queues are as long as TCP makes them.
            `software_seconds` is not made: the computers take that time by themselves.

    Raises:
        ValueError: the two directions share one channel, which this wire does not do.
        PermissionError: without the rights of root, or without TUN or namespaces in the kernel.
    """
    if not network.full_duplex:
        raise ValueError("shaped_link: network must be full_duplex, got full_duplex=False")
    for program in ("ip", "nsenter"):
        if shutil.which(program) is None:
            raise PermissionError(f"shaped_link: needs the program {program!r}, which is missing")
    wire = subprocess.Popen(
        [sys.executable, "-I", delay_line.__file__, json.dumps(network.to_dict())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # an interrupt from the keyboard ends it through its input
    )
    assert wire.stdin is not None and wire.stdout is not None
    try:
        answer = json.loads(wire.stdout.readline() or '{"error": "the program ended"}')
        if "error" in answer:
            raise PermissionError(
                "shaped_link: needs root, network namespaces and /dev/net/tun to shape a link "
                f"({answer['error']}); without them use the loopback or two machines"
            )
        enter = [
            ["nsenter", f"--net=/proc/{wire.pid}/fd/{descriptor}", "--"]
            for descriptor in answer["namespaces"]
        ]
        yield ShapedLink((enter[CLIENT], enter[SERVER]))
    finally:
        wire.stdin.close()
        wire.stdout.close()
        wire.wait()
