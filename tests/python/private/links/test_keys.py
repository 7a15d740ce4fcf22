"""Mutual TLS: who gets in, and who can read the bytes."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aero.private.links.keys import CERTIFICATE, KEY, Security, fingerprints, make_keys
from aero.private.parties.supervision import TimeLimits
from aero.private.party_errors import PartyError

from ..pretending import (
    LIMITS,
    Eavesdropper,
    People,
    Served,
    client_hello,
    pretending_python,
    received,
)


@pytest.fixture
def limits() -> TimeLimits:
    return dataclasses.replace(LIMITS, hello=5.0)


def test_a_key_is_for_its_owner_alone_and_is_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    fingerprint = make_keys(folder)
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = (folder / KEY).read_bytes()
    with pytest.raises(ValueError, match="has a key already"):
        make_keys(folder)
    assert (folder / KEY).read_bytes() == before
    assert fingerprints(folder / CERTIFICATE) == [fingerprint]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="compares with the program openssl")
def test_a_fingerprint_is_the_one_that_openssl_shows(tmp_path: Path) -> None:
    fingerprint = make_keys(tmp_path)
    command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", CERTIFICATE]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.partition("=")[2].strip().replace(":", "").lower() == fingerprint


@pytest.mark.parametrize("content", ["", "no certificate", "-----BEGIN CERTIFICATE-----\n!\n"])
def test_a_file_without_certificates_is_named(tmp_path: Path, content: str) -> None:
    make_keys(tmp_path / "keys")
    (tmp_path / "known.pem").write_text(content)
    with pytest.raises(ValueError, match=r"known\.pem holds (no|a damaged) certificate"):
        Security(tmp_path / "keys", tmp_path / "known.pem")


def test_those_who_know_each_other_compute(serving: Any, people: People) -> None:
    server = serving("ann", "bob")
    for number, name in enumerate(("ann", "bob"), start=1):
        server.ask(security=people.security(name, "server"))
        server.wait_for("served", number)
        assert server.wait_for("client", number)["who"] == people.fingerprint[name]


def test_a_client_that_is_not_known_is_refused_and_told(serving: Any, people: People) -> None:
    server = serving("ann")
    with pytest.raises(PartyError, match="closed the connection; it may not know this"):
        server.ask(security=people.security("bob", "server"))
    assert "without a known certificate" in server.wait_for("refused")["reason"]
    server.ask(security=people.security("ann", "server"))


def test_a_server_that_is_not_the_known_one_is_refused(serving: Any, people: People) -> None:
    server = serving("ann")
    with pytest.raises(PartyError, match="another certificate than the known one"):
        server.ask(security=people.security("ann", "bob"))


def test_a_client_without_tls_gets_not_one_byte(serving: Any, people: People) -> None:
    server = serving("ann")
    with server.connect() as stranger:
        stranger.sendall(client_hello())
        assert len(received(stranger)) <= 7  # TLS's own alert
    server.ask(security=people.security("ann", "server"))


def test_a_client_that_never_finishes_its_handshake_is_closed(serving: Any, people: People) -> None:
    server = serving("ann")
    silent = [server.connect() for _ in range(40)]
    server.ask(security=people.security("ann", "server"))
    for connection in silent:
        connection.close()


def certified(folder: Path, issuer: Path | None = None) -> None:
    """A key whose certificate another one has signed, or an authority's that signs itself."""
    key = issuing = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.timezone.utc)
    name = issuer_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, folder.name)])
    if issuer is not None:
        issuing = serialization.load_pem_private_key((issuer / KEY).read_bytes(), None)
        assert isinstance(issuing, ec.EllipticCurvePrivateKey)
        issuer_name = x509.load_pem_x509_certificate((issuer / CERTIFICATE).read_bytes()).subject
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuing, hashes.SHA256())
    )
    folder.mkdir()
    (folder / KEY).touch(0o600)
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / KEY).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def test_who_a_known_client_vouches_for_is_not_known(
    serving: Any, people: People, tmp_path: Path
) -> None:
    certified(tmp_path / "carl")
    certified(tmp_path / "guest", issuer=tmp_path / "carl")
    server = serving("ann", "carl")
    with pytest.raises(PartyError, match="closed the connection"):
        server.ask(security=people.security("guest", "server"))
    assert "is not a known one" in server.wait_for("refused")["reason"]  # TLS itself let it pass
    server.ask(security=people.security("carl", "server"))


def test_a_client_that_is_no_longer_listed_is_refused_at_once(serving: Any, people: People) -> None:
    server = serving("ann", "bob")
    server.ask(security=people.security("bob", "server"))
    people.security("server", "ann")  # rewrites the list
    with pytest.raises(PartyError, match="closed the connection; it may not know this"):
        server.ask(security=people.security("bob", "server"))


def test_the_count_of_queries_outlives_the_server(serving: Any, people: People) -> None:
    for name, number in (("ann", 2), ("bob", 2)):
        server = serving("ann", "bob", queries=2)
        server.ask(new_tokens=number, security=people.security(name, "server"))
        server.end()
    server = serving("ann", "bob", queries=2)
    with pytest.raises(PartyError, match="at most the 0 that are left to this client of 2, got 1"):
        server.ask(security=people.security("ann", "server"))


@pytest.mark.parametrize("encrypted", [True, False])
def test_who_listens_in_between_reads_nothing(
    serving: Any, export: Path, people: People, tmp_path: Path, encrypted: bool
) -> None:
    server = serving("ann")
    security: Security | None = people.security("ann", "server")
    if not encrypted:  # the text that there would be to read
        server.end()
        server, security = Served(export, pretending_python(tmp_path)), None
    middle = Eavesdropper(server.address)
    server.address = middle.address
    server.ask(security=security)
    words = [b"exp_squarings", b"prompt_length", b"aero-private", b"layer", b"server", b"client"]
    assert len(middle.heard) > 100_000
    assert any(word in middle.heard for word in words) is not encrypted
    server.end()
    middle.listener.close()


def test_runs_of_a_length_take_equal_bytes_under_tls(serving: Any, people: People) -> None:
    """SPU's traffic is pretended, and of random size."""
    server = serving("ann")
    security, counts = people.security("ann", "server"), []
    address = server.address
    for number in (1, 2, 3):
        middle = Eavesdropper(address)
        server.address = middle.address
        events = server.ask(security=security)
        server.wait_for("served", number)
        assert "unpadded" not in [event["event"] for event in events]
        counts.append(middle.counts)
        middle.listener.close()
    for party in ("client", "server"):
        found = [count[party] for count in counts]
        # Signatures of the handshake have 70 to 72 bytes.
        assert max(found) - min(found) <= 4, found
