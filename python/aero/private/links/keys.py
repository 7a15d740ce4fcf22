"""Who a party is: a key of its own, and the certificates of those that it knows.

TLS 1.3 with a self-signed certificate at each side. A certificate is known as a whole, by its
SHA-256 fingerprint: no authority can vouch for another one, and no name is checked.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aero.internals.errors import extra
from aero.private.links.file_modes import check_trusted, open_folder
from aero.private.party_errors import PartyError
from aero.reading import one_line, read_bytes

KEY, CERTIFICATE = "key.pem", "certificate.pem"
_YEARS = 10  # trust ends where a certificate is no longer listed, not with time
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Security:
    """Mutual TLS of one party.

    Attributes:
        keys: folder of `make_keys`.
        known: PEM file with the certificates of the parties that it talks to.
        third: PEM file with one further certificate where three compute: the helper's, and at the
            helper the server's.

    Raises:
        ValueError: a file is missing, is damaged, does not belong to the others, or is not this
            user's alone to write, and the key to read; or one party would be two of the three.
    """

    keys: Path
    known: Path
    third: Path | None = None

    def __post_init__(self) -> None:
        own_fingerprint(self.keys)
        check_trusted(self.keys / CERTIFICATE)
        self.context(server=True)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Returns Python's context of this side; the other's certificate is still to be `checked`.

        It is made anew where the known certificates have changed.

        Raises:
            ValueError: as of the class.
        """
        listed = self._listed()
        if server in listed.contexts:
            return listed.contexts[server]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if server:
            context.num_tickets = 0  # every connection shows its certificate
        _load_own(context, self.keys)
        context.load_verify_locations(cadata=b"".join(listed.certificates.values()))
        listed.contexts[server] = context
        return context

    def checked(self, certificate: bytes | None) -> str:
        """Returns the fingerprint of the other's certificate (DER).

        Raises:
            PartyError: it is none of the known ones. A known certificate that may sign others
                would bring them through TLS's own check.
        """
        found = hashlib.sha256(certificate or b"").hexdigest()
        if found not in self._listed().certificates:
            raise PartyError(f"the other party's certificate {found} is not a known one")
        return found

    @property
    def third_party(self) -> str | None:
        """The fingerprint of the one certificate in `third`."""
        return self._listed().third

    @functools.cached_property
    def _last(self) -> list[_Listed]:
        return []

    def _listed(self) -> _Listed:
        paths = [self.known, *([] if self.third is None else [self.third])]
        content = [read_bytes(path, _MOST_BYTES) for path in paths]
        for path in paths:
            check_trusted(path)
        if not self._last or self._last[0].content != content:
            lists = [_certificates(*each) for each in zip(content, paths, strict=True)]
            third = None if self.third is None else self._only_third(*lists)
            merged = {who: each for found in lists for who, each in found.items()}
            self._last[:] = [_Listed(content, merged, third, {})]
        return self._last[0]

    def _only_third(self, known: dict[str, bytes], third: dict[str, bytes]) -> str:
        """Two of three parties together read everything: nobody may be two."""
        if len(third) != 1:
            raise ValueError(f"private: {self.third}: expected one certificate, got {len(third)}")
        [found] = third
        if found in known or found == own_fingerprint(self.keys):
            other = self.known if found in known else self.keys / CERTIFICATE
            raise ValueError(
                f"private: {self.third}: expected a party of its own, got the certificate {found} "
                f"that {other} has too"
            )
        return found


class _Listed(NamedTuple):
    """The known certificates (DER) by fingerprint, and what was made of them."""

    content: list[bytes]
    certificates: dict[str, bytes]
    third: str | None
    contexts: dict[bool, ssl.SSLContext]


def _load_own(context: ssl.SSLContext, keys: Path) -> None:
    path = keys / KEY
    read_bytes(path, _MOST_BYTES)
    check_trusted(path, secret=True)

    def refuse() -> str:  # else OpenSSL asks at the terminal, and everybody waits
        raise ValueError(
            f"private: {path}: expected a key without a passphrase, got an encrypted one; "
            "`openssl pkey` writes it without, or `aero private keys` makes another"
        )

    try:
        context.load_cert_chain(keys / CERTIFICATE, path, refuse)
    except ssl.SSLError as error:
        another = (error.reason or "").startswith("KEY_")
        expected = f"the key of {CERTIFICATE}" if another else "a key in PEM"
        got = "another one" if another else one_line(error, 100)
        raise ValueError(f"private: {path}: expected {expected}, got {got}") from error


def own_fingerprint(keys: Path) -> str:
    """The fingerprint of the certificate in a folder of `make_keys`.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = fingerprints(keys / CERTIFICATE)
    if len(found) != 1:
        where = keys / CERTIFICATE
        raise ValueError(f"private: {where}: expected one certificate, got {len(found)}")
    return found[0]


def fingerprints(path: Path) -> list[str]:
    """SHA-256 of each certificate in a PEM file, as `openssl x509 -fingerprint` counts it.

    Raises:
        ValueError: there is no such file, or no certificate in it.
    """
    return list(_certificates(read_bytes(path, _MOST_BYTES), path))


def _certificates(content: bytes, path: Path) -> dict[str, bytes]:
    """The certificates (DER) of a file in PEM by their fingerprints."""
    text = content.decode("ascii", errors="replace")
    start, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    parts = [start + part.partition(end)[0] + end for part in text.split(start)[1:]]
    try:
        found = [ssl.PEM_cert_to_DER_cert(part) for part in parts]
        for each in found:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=each)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"private: {path} holds a damaged certificate: {error}") from error
    if not found:
        raise ValueError(f"private: {path} holds no certificate")
    return {hashlib.sha256(each).hexdigest(): each for each in found}


def make_keys(folder: str | Path) -> str:
    """Makes a key on the curve P-256 and its self-signed certificate.

    Args:
        folder: where `key.pem`, for its owner's eyes alone, and `certificate.pem` go; made if
            missing. It must be no link.

    Returns:
        The certificate's fingerprint.

    Raises:
        ValueError: the folder has a key or a certificate already, or others may write to it.

    Example:
        >>> from pathlib import Path
        >>> from aero.private import make_keys
        >>> from aero.private.links.keys import fingerprints
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = make_keys(Path(folder, "server"))
        ...     [made] == fingerprints(Path(folder, "server", "certificate.pem"))
        True
    """
    folder = Path(folder)
    with extra("private"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # OpenSSL looks for issuers by name: equal names would be taken for each other's.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"aero private {serial:x}")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    shown = certificate.public_bytes(serialization.Encoding.PEM)
    _write_new(folder, {KEY: (secret, 0o600), CERTIFICATE: (shown, 0o644)})
    return own_fingerprint(folder)


def _write_new(folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Writes files with their modes, all of them or none, and none through a link."""
    opened = open_folder(folder)
    made: list[str] = []
    try:
        for name, (content, mode) in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, mode, dir_fd=opened), "wb") as file:
                made.append(name)
                file.write(content)
    except OSError as error:
        for each in made:
            os.unlink(each, dir_fd=opened)
        if isinstance(error, FileExistsError):
            word = name.partition(".")[0]
            raise ValueError(
                f"private: {folder} has a {word} already; give another folder"
            ) from None
        raise
    finally:
        os.close(opened)
