"""Key files that a party does not start with: each is refused in one line, at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.python.refusals import assert_refused

from aero.private.links.keys import CERTIFICATE, KEY, Security, make_keys


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A party's folder, which knows itself."""
    folder = tmp_path / "keys"
    make_keys(folder)
    (folder / "clients.pem").write_bytes((folder / CERTIFICATE).read_bytes())
    (folder / "clients.pem").chmod(0o644)
    return folder


def encrypted(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    hidden = key.private_bytes(*form, serialization.BestAvailableEncryption(b"word"))
    (folder / KEY).write_bytes(hidden)


def anothers(folder: Path) -> None:
    make_keys(folder / "other")
    (folder / KEY).write_bytes((folder / "other" / KEY).read_bytes())


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def emptied(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, 0)


def removed(folder: Path) -> None:
    (folder / KEY).unlink()


DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "an encrypted key": (encrypted, r"key\.pem: expected a key without a passphrase"),
    "the key of another certificate": (anothers, r"key\.pem: expected the key of certificate\.pem"),
    "an empty key": (emptied(KEY), r"key\.pem: expected a key in PEM"),
    "half a key": (cut(KEY), r"key\.pem: expected a key in PEM"),
    "no key": (removed, r"key\.pem: cannot be read"),
    "an empty certificate": (emptied(CERTIFICATE), r"certificate\.pem holds no certificate"),
    "half a certificate": (cut(CERTIFICATE), r"certificate\.pem holds a damaged certificate"),
    "no clients": (emptied("clients.pem"), r"clients\.pem holds no certificate"),
    "half a client": (cut("clients.pem"), r"clients\.pem holds a damaged certificate"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_used_is_refused_before_anybody_comes(keys: Path, name: str) -> None:
    damage, expected = DAMAGED[name]
    damage(keys)
    # In a session of its own there is no terminal that OpenSSL could ask for a passphrase.
    program = (
        "import sys; from pathlib import Path; from aero.private.links.keys import Security\n"
        "keys = Path(sys.argv[1])\n"
        "try: Security(keys, keys / 'clients.pem')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(keys)],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
    )
    assert "pass phrase" not in done.stdout + done.stderr
    [line] = done.stdout.splitlines()
    assert re.search(expected, line), line


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: os.truncate(path, 100), "clients.pem holds a damaged certificate"),
        (lambda path: path.chmod(0o666), "clients.pem: expected"),
    ],
)
def test_a_list_that_changes_for_the_worse_lets_nobody_in(
    keys: Path, damage: Callable[[Path], None], named: str
) -> None:
    security = Security(keys, keys / "clients.pem")
    security.context(server=True)
    damage(keys / "clients.pem")
    assert_refused(lambda: security.context(server=True), named)


def test_a_context_is_made_anew_only_where_the_list_changed(keys: Path) -> None:
    security = Security(keys, keys / "clients.pem")
    first = security.context(server=True)
    assert security.context(server=True) is first
    make_keys(keys / "other")
    with (keys / "clients.pem").open("ab") as listed:
        listed.write((keys / "other" / CERTIFICATE).read_bytes())
    assert security.context(server=True) is not first


OPEN: dict[str, tuple[str, int, str]] = {
    "a key that the group can read": (KEY, 0o640, r"key\.pem: expected .* owner .*0640"),
    "a key that all can read": (KEY, 0o644, r"key\.pem: expected .* owner .*0644"),
    "a certificate that all can write": (CERTIFICATE, 0o666, r"certificate\.pem: expected"),
    "a list that all can write": ("clients.pem", 0o666, r"clients\.pem: expected .*0666"),
    "a list that the group can write": ("clients.pem", 0o664, r"clients\.pem: expected .*0664"),
    "a folder that all can write": (".", 0o777, r"keys: expected .*0777"),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_others_can_read_or_write_is_refused(keys: Path, name: str) -> None:
    file, mode, expected = OPEN[name]
    (keys / file).chmod(mode)
    with pytest.raises(ValueError, match=expected) as caught:
        Security(keys, keys / "clients.pem")
    assert "chmod" in str(caught.value)


def test_a_list_in_a_folder_that_all_can_write_is_refused(keys: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "server.pem").write_bytes((keys / CERTIFICATE).read_bytes())
    shared.chmod(0o777)
    with pytest.raises(ValueError, match=r"shared: expected .*0777"):
        Security(keys, shared / "server.pem")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user, which root alone may")
def test_a_list_of_another_user_is_refused(keys: Path) -> None:
    os.chown(keys / "clients.pem", 65534, -1)
    with pytest.raises(ValueError, match=r"clients\.pem: expected .* user 65534"):
        Security(keys, keys / "clients.pem")


@pytest.mark.parametrize("name", [KEY, CERTIFICATE])
def test_keys_are_not_written_through_links(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    for target in (precious, tmp_path / "nowhere"):
        (folder / name).symlink_to(target)
        with pytest.raises(ValueError, match=rf"has a {name.partition('.')[0]} already"):
            make_keys(folder)
        (folder / name).unlink()
        assert precious.read_text() == "mine"
        assert not (tmp_path / "nowhere").exists()
        assert list(folder.iterdir()) == []


def test_keys_are_not_made_in_a_linked_or_open_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(ValueError, match=r"link: expected a folder"):
        make_keys(tmp_path / "link")
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(ValueError, match=r"real: expected .*0777"):
        make_keys(tmp_path / "real")
    assert list((tmp_path / "real").iterdir()) == []
