"""The wire between two network namespaces: when packets arrive, and TCP's rate over it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aero import mpc
from aero.private.links.delay_line import Direction, wire_bytes
from aero.private.links.shaped_link import CLIENT, SERVER, shaped_link

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK),
    reason="shaping links needs root and /dev/net/tun",
)
SIZES = st.lists(st.integers(1, 10_000), min_size=1, max_size=20)


@given(SIZES, st.floats(0, 0.2))
def test_packets_sent_at_once_arrive_one_after_the_other_at_the_rate(
    sizes: list[int], delay: float
) -> None:
    direction = Direction(bytes_per_second=1000.0, delay_seconds=delay)
    for number, size in enumerate(sizes):
        direction.send(0.0, size, bytes([number]))
    for number in range(len(sizes)):
        arrival = sum(sizes[: number + 1]) / 1000 + delay
        assert direction.next_arrival == pytest.approx(arrival)
        assert direction.arrived(arrival - 1e-6) == []
        assert direction.arrived(arrival + 1e-6) == [bytes([number])]
    assert direction.next_arrival == float("inf")


def test_a_packet_on_an_idle_wire_starts_when_it_comes() -> None:
    direction = Direction(bytes_per_second=1000.0, delay_seconds=0.5)
    direction.send(0.0, 1000, b"a")
    direction.send(7.0, 1000, b"b")
    assert direction.arrived(10.0) == [b"a", b"b"]
    direction.send(20.0, 1000, b"c")
    assert direction.next_arrival == 21.5


@given(st.integers(1, 60_000), st.integers(500, 1460), st.integers(40, 80))
def test_every_segment_of_a_packet_costs_its_headers(
    payload: int, segment: int, header: int
) -> None:
    packet = struct.pack("<BBHHHH", 1, 1, header, segment, 20, 16) + bytes(header + payload)
    segments = -(-payload // segment)
    assert wire_bytes(packet) == payload + segments * (header + 38)


ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(10):
    connection.sendall(connection.recv(1))
while connection.recv(1 << 20):
    pass
connection.sendall(b"x")
"""
MEASURE = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(10):
    start = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    trips.append(time.perf_counter() - start)
start = time.perf_counter()
connection.sendall(bytes(1_000_000))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(min(trips), time.perf_counter() - start)
"""
# Faster than these nothing can be; how much slower depends on the machine's other work.
NETWORK = mpc.NetworkProfile(uplink_mbps=40, downlink_mbps=400, round_trip_seconds=0.02)


@NEEDS_ROOT
def test_a_shaped_link_keeps_its_round_trip_and_its_rate() -> None:
    with shaped_link(NETWORK) as link:
        server = [*link.enter[SERVER], sys.executable, "-c", ECHO, link.addresses[SERVER]]
        client = [*link.enter[CLIENT], sys.executable, "-c", MEASURE, link.addresses[SERVER]]
        with subprocess.Popen(server, stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            echo.stdout.readline()
            measured = subprocess.run(client, capture_output=True, text=True, check=True)
    trip, sending = map(float, measured.stdout.split())
    assert trip >= 0.02
    assert sending >= 1_000_000 * 8 / 40e6 + 0.02


@NEEDS_ROOT
def test_a_shaped_link_vanishes_with_its_block() -> None:
    with shaped_link(NETWORK) as link:
        namespace = Path(link.enter[CLIENT][1].removeprefix("--net="))
        assert namespace.exists()
        inside = subprocess.run(
            [*link.enter[CLIENT], "ip", "-brief", "link"], capture_output=True, text=True
        )
        assert "wire" in inside.stdout
    assert not namespace.exists()


@NEEDS_ROOT
def test_a_shaped_link_vanishes_with_a_killed_program() -> None:
    program = (
        "import time; from aero import mpc\n"
        "from aero.private.links.shaped_link import shaped_link\n"
        "with shaped_link(mpc.network_profile('wan-400mbps')) as link:\n"
        "    print(link.enter[0][1].split('/')[2], flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        wire = int(owner.stdout.readline())
        owner.kill()
    end = time.monotonic() + 10
    while Path(f"/proc/{wire}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{wire}").exists()


def test_without_the_rights_the_error_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        pytest.raises(ValueError, match="network must be full_duplex"),
        shaped_link(mpc.NetworkProfile(1, 1, 0, full_duplex=False)),
    ):
        pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermissionError, match="needs the program 'ip'"), shaped_link(NETWORK):
        pass
