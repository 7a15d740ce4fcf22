"""SEMI2K with a dealer apart, who answers with zeros and only counts; prints bytes by operation.

SPU's client of a dealer sends JSON over HTTP/1.1. Its answers are a byte 0, the length in 8 bytes,
and the numbers that seeds cannot make. The values come out wrong, and nothing else does: what is
sent depends on shapes alone.
"""

from __future__ import annotations

import collections
import http.server
import json
import struct
import threading
from typing import Any, ClassVar

import numpy as np
import spu
from spu import libspu

from aero.private.compute.calls import Value
from aero.private.compute.spu_runtime import Compiler
from aero.private.settings import PrivateSettings

# A public key on the curve SM2, whose private one nobody keeps: the seeds stay encrypted.
KEY = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoEcz1UBgi0DQgAEBoGZd/Ga/Y0xOK1v78syC8Lx4Afw
KXE/lk4xrI8IESYvSsmzJzx9EXKfpZwNaL8N4rB03gVX3Etx7WxXKobvug==
-----END PUBLIC KEY-----
"""
N, M, K = 1000, 20, 30
OPERATIONS: dict[str, tuple[Any, ...]] = {
    "product": (lambda x, y: x * y, (N,), (N,), np.int32),
    "square": (lambda x, y: x * x, (N,), (N,), np.int32),
    "matmul": (lambda x, y: x @ y, (M, K), (K, M), np.int32),
    "truncation": (lambda x, y: 0.3 * x, (N,), (N,), np.float32),
    "comparison": (lambda x, y: x > 0, (N,), (N,), np.float32),
    "equality": (lambda x, y: x == y, (N,), (N,), np.int32),
}


class Dealer(http.server.BaseHTTPRequestHandler):
    """Counts, by method, the bytes of numbers in its answers."""

    protocol_version = "HTTP/1.1"
    sent: ClassVar[collections.Counter[str]] = collections.Counter()

    def do_POST(self) -> None:
        method = self.path.rsplit("/", 1)[1]
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        inputs = asked["prg_inputs"]
        count = 2 if method == "AdjustTruncPr" else 1
        size = count * int(inputs[2 if method == "AdjustDot" else 0]["buffer_len"])
        self.sent[method] += size
        content = struct.pack("<bq", 0, size) + bytes(size)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n0\r\n\r\n")

    def log_message(self, *_: Any) -> None: ...


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dealer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = libspu.RuntimeConfig()
    beaver = {
        "server_host": f"127.0.0.1:{server.server_port}",
        "adjust_rank": 1,
        "asym_crypto_schema": "SM2",
        "server_public_key": KEY,
        "transport_protocol": "http",
    }
    given = {
        "protocol": "SEMI2K", "field": "FM64", "fxp_fraction_bits": 18, "max_concurrency": 1,
        "beaver_type": "TrustedThirdParty", "ttp_beaver_config": beaver,
    }  # fmt: skip
    assert config.ParseFromJsonString(json.dumps(given))
    description = libspu.link.Desc()
    for rank in range(2):
        description.add_party(f"party-{rank}", f"thread-{rank}")
    runtimes: dict[int, Any] = {}

    def make(rank: int) -> None:
        runtimes[rank] = spu.Runtime(libspu.link.create_mem(description, rank), config)

    at_once(make)
    io, compiler = spu.Io(2, config), Compiler(PrivateSettings(protocol="semi2k"))
    found = {}
    for name, (function, first, second, kind) in OPERATIONS.items():
        values = []
        for shape in (first, second):
            array = np.ones(shape, kind)
            shares = io.make_shares(array, libspu.Visibility.VIS_SECRET)
            values.append(Value(compiler.new_name(), shape, np.dtype(kind)))
            for rank, share in enumerate(shares):
                runtimes[rank].set_var(values[-1].name, share)
        program = compiler.program(name, function, tuple(values))
        Dealer.sent.clear()
        at_once(lambda rank, program=program: runtimes[rank].run(program.executable))
        found[name] = dict(Dealer.sent)
    print(json.dumps(found))


def at_once(work: Any) -> None:
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
