"""A wire between two network namespaces: packets leave late and at a limited rate.

Run as a program by `aero.private.links.shaped_link`. Both ends are TUN devices, each in an unnamed
network namespace that exists as long as this process or a program inside it, so nothing is ever
left behind. Packets pass with their segmentation header (`struct virtio_net_hdr`): the kernel hands
over up to 64 KiB at once, while TCP's segments and windows stay those of a 1,500-byte wire. The
kernel's own delay (`tc netem`) is not in every kernel; TUN is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field

ADDRESSES = ("10.213.77.1", "10.213.77.2")  # in namespaces of their own: they clash with nothing

# <linux/if_tun.h>, <linux/sched.h>
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TUN_NO_PACKET_INFORMATION_WITH_HEADER = 0x0001 | 0x1000 | 0x4000
_OFFLOAD_CHECKSUM_AND_TCP = 0x01 | 0x02
_CLONE_NEWNET = 0x40000000

_HEADER_BYTES = 10
_LONGEST_PACKET = 65536 + _HEADER_BYTES
# Ethernet's header, check sequence, preamble and gap, which occupy the wire with every segment.
_FRAME_BYTES = 38


@dataclass
class Direction:
    """One direction of the wire: a queue at a rate, then a delay.

    Attributes:
        bytes_per_second: the rate, > 0.
        delay_seconds: from the end of sending to arrival.
    """

    bytes_per_second: float
    delay_seconds: float
    _busy_until: float = 0.0
    _flying: deque[tuple[float, bytes]] = field(default_factory=deque)

    def send(self, now: float, wire_bytes: int, packet: bytes) -> None:
        """Takes a packet at time `now` (seconds); it waits for those before it."""
        self._busy_until = max(now, self._busy_until) + wire_bytes / self.bytes_per_second
        self._flying.append((self._busy_until + self.delay_seconds, packet))

    @property
    def next_arrival(self) -> float:
        """When the next packet arrives; infinity if none is under way."""
        return self._flying[0][0] if self._flying else float("inf")

    def arrived(self, now: float) -> list[bytes]:
        """The packets that have arrived by `now`, in order."""
        packets = []
        while self.next_arrival <= now:
            packets.append(self._flying.popleft()[1])
        return packets


def wire_bytes(packet: bytes) -> int:
    """The bytes that a packet with its segmentation header occupies on a wire of Ethernet frames.

    One frame per segment, each with its own copy of the packet's headers.
    """
    _, kind, header, segment, _, _ = struct.unpack_from("<BBHHHH", packet)
    length = len(packet) - _HEADER_BYTES
    if kind == 0 or segment == 0:
        return length + _FRAME_BYTES
    segments = -(-(length - header) // segment)
    return int(length + (segments - 1) * header + segments * _FRAME_BYTES)


def carry(
    ends: tuple[int, int], directions: tuple[Direction, Direction], until_closed: int
) -> None:
    """Passes packets between two TUN devices until the descriptor `until_closed` is closed."""
    while True:
        now = time.monotonic()
        for direction, destination in zip(directions, reversed(ends), strict=True):
            for packet in direction.arrived(now):
                os.write(destination, packet)
        wait = min(direction.next_arrival for direction in directions) - time.monotonic()
        # select, for epoll rounds its wait up to milliseconds
        ready, _, _ = select.select([*ends, until_closed], [], [], max(0.0, min(wait, 1.0)))
        if until_closed in ready:
            return
        for end, direction in zip(ends, directions, strict=True):
            if end in ready:
                packet = os.read(end, _LONGEST_PACKET)
                direction.send(time.monotonic(), wire_bytes(packet), packet)


def open_end(address: str) -> tuple[int, int]:
    """Moves this process to a new network namespace with a TUN device; returns both descriptors."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise PermissionError(ctypes.get_errno(), "a network namespace cannot be made")
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    device = os.open("/dev/net/tun", os.O_RDWR)
    name = "wire"
    request = struct.pack("16sH22x", name.encode(), _TUN_NO_PACKET_INFORMATION_WITH_HEADER)
    fcntl.ioctl(device, _TUNSETIFF, request)
    fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM_AND_TCP)
    for command in (
        f"address add {address}/30 dev {name}",
        f"link set {name} up",
        "link set lo up",
    ):
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)
    return namespace, device


def main() -> None:
    """Makes the wire that the first argument describes, says so on standard output, carries."""
    described = json.loads(sys.argv[1])
    try:
        opened = [open_end(address) for address in ADDRESSES]
    except (OSError, subprocess.CalledProcessError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    with contextlib.suppress(PermissionError):  # else a busy machine adds its own milliseconds
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    up, down = (
        Direction(described[rate] * 1e6 / 8, described["round_trip_seconds"] / 2)
        for rate in ("uplink_mbps", "downlink_mbps")
    )
    print(json.dumps({"namespaces": [namespace for namespace, _ in opened]}), flush=True)
    carry((opened[0][1], opened[1][1]), (up, down), until_closed=sys.stdin.fileno())


if __name__ == "__main__":
    main()
