"""Password hashes, the file of users, and how it changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from statestore_client.errors import InvalidArgumentError, SettingsError
from statestore_client.server.runtime.security.passwords import (
    PasswordHash,
    Passwords,
    read_passwords,
    remove_user,
    set_password,
)

#: RFC 7914, section 12, the first half of the outputs: PBKDF2 makes them in blocks of 32 bytes.
VECTORS = [
    (b"password", b"NaCl", 10, 8, 16, "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"),
    (b"pleaseletmein", b"SodiumChloride", 14, 8, 1, "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"),
]
#: The second vector as the usual notation writes it.
LINE = "pump:$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU$cCO9yzr9c0hGHAbNgf046/2o+7qQT44+qbVD9lRdofI"


@pytest.mark.parametrize(("password", "salt", "cost", "block_size", "parallel", "digest"), VECTORS)
def test_vectors_of_the_standard(
    password: bytes, salt: bytes, cost: int, block_size: int, parallel: int, digest: str
) -> None:
    """The standard's vectors accept their password and refuse another one."""
    known = PasswordHash(cost, block_size, parallel, salt, bytes.fromhex(digest))
    assert known.matches(password)
    assert not known.matches(password + b"x")


def test_a_line_of_another_program() -> None:
    """The example in passlib 1.7's documentation is read, and written back unchanged."""
    line = "$scrypt$ln=16,r=8,p=1$aM15713r3Xsvxbi31lqr1Q$nFNh2CVHVjNldFVKDHDlm4CbdRSCdEBsjjJxD+iCs5E"
    hashes = read_passwords(f"# users\n\npump:{line}\n", "users")
    assert hashes["pump"].matches(b"password")
    assert str(hashes["pump"]) == line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pump", "users, line 1: a line is a user, a colon and a hash"),
        ("pump:secret", "users, line 1: a line is a user, a colon and a hash"),
        ("\npump:$6$rounds=5000$salt$hash", "users, line 2: this is not a scrypt hash"),
        (LINE.replace("ln=14", "ln=4"), "line 1: the costs of this hash are out of range"),
        (LINE.replace("ln=14", "ln=30"), "line 1: the costs of this hash are out of range"),
        (LINE.replace("r=8", "r=0"), "line 1: the costs of this hash are out of range"),
        (LINE[:-4], "line 1: this is not a scrypt hash"),
        (f"{LINE}\n{LINE}", "line 2: user 'pump' has a line already"),
        (f":{LINE.partition(':')[2]}", "line 1: '' is not a name for a user"),
        (f" {LINE}", "line 1: ' pump' is not a name for a user"),
    ],
)
def test_a_file_with_mistakes(text: str, complaint: str) -> None:
    """The message about a mistake names file, line and reason, and shows no hash."""
    with pytest.raises(SettingsError) as caught:
        read_passwords(text, "users")
    assert complaint in str(caught.value)
    assert "cCO9" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A missing file is an error that names it, because a typing mistake must not open the server to everybody."""
    with pytest.raises(SettingsError, match="nowhere cannot be read"):
        Passwords.load(tmp_path / "nowhere")


def test_users_come_change_and_go(tmp_path: Path) -> None:
    """Every change of users is seen, comments stay where they are, and only the owner can read the file."""
    path = tmp_path / "users"
    set_password(path, "pump", b"old")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("# keep me\n" + path.read_text())
    path.chmod(0o640)
    set_password(path, "valve", b"v")
    passwords = Passwords.load(path)
    assert passwords.verify("pump", b"old")
    assert passwords.refresh() is None
    set_password(path, "pump", b"new")
    assert passwords.refresh() == frozenset()
    assert not passwords.verify("pump", b"old")
    assert passwords.verify("pump", b"new")
    assert remove_user(path, "pump")
    assert not remove_user(path, "pump")
    assert passwords.refresh() == {"pump"}
    assert not passwords.verify("pump", b"new")
    assert passwords.verify("valve", b"v")
    assert path.read_text().startswith("# keep me\nvalve:$scrypt$ln=14,r=8,p=1$")
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["users"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_file_keeps_its_owner(tmp_path: Path) -> None:
    """A file that the server's user may read stays so, whoever changes a password."""
    path = tmp_path / "users"
    set_password(path, "pump", b"old")
    os.chown(path, 10001, 10002)
    path.chmod(0o640)
    set_password(path, "pump", b"new")
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode & 0o777) == (10001, 10002, 0o640)


def test_mistakes_while_running_change_nothing(tmp_path: Path) -> None:
    """A broken file is reported once and the old content counts; a missing one is taken as being replaced, and told
    once if it stays away. It counts when it is back.
    """
    path = tmp_path / "users"
    path.write_text(LINE)
    passwords = Passwords.load(path)
    path.write_text("nonsense")
    with pytest.raises(SettingsError, match="line 1"):
        passwords.refresh()
    assert passwords.refresh() is None
    path.unlink()
    for _ in range(4):
        assert passwords.refresh() is None
    with pytest.raises(SettingsError, match="users cannot be read"):
        passwords.refresh()
    assert passwords.refresh() is None
    assert passwords.verify("pump", b"pleaseletmein")
    path.write_text(LINE.replace("pump", "valve"))
    assert passwords.refresh() == {"pump"}


def test_a_link_on_the_way_to_the_file_is_changed(tmp_path: Path) -> None:
    """A volume of Kubernetes changes by a link that all paths go through; a user who is missing there is gone."""
    for version, user in (("1", "pump"), ("2", "valve")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "users").write_text(LINE.replace("pump", user))
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "users").symlink_to("..data/users")
    passwords = Passwords.load(tmp_path / "users")
    assert passwords.refresh() is None
    (tmp_path / "..data_tmp").symlink_to("2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    shutil.rmtree(tmp_path / "1")
    assert passwords.refresh() == {"pump"}
    assert passwords.verify("valve", b"pleaseletmein")


def test_a_file_with_the_size_and_the_time_of_the_one_before(tmp_path: Path) -> None:
    """A file that is copied into place with its time is read, although inode, size and time are as before."""
    path = tmp_path / "users"
    path.write_text(LINE)
    time_ns = path.stat().st_mtime_ns
    passwords = Passwords.load(path)
    path.write_text(LINE.replace("pump", "tank"))
    os.utime(path, ns=(time_ns, time_ns))
    assert passwords.refresh() == {"pump"}
    assert passwords.verify("tank", b"pleaseletmein")


def test_a_file_with_mistakes_is_not_rewritten(tmp_path: Path) -> None:
    """A file with mistakes is not rewritten, because a person has to look at it first."""
    path = tmp_path / "users"
    path.write_text("nonsense")
    for change in (lambda: set_password(path, "pump", b"x"), lambda: remove_user(path, "pump")):
        with pytest.raises(SettingsError, match="line 1"):
            change()
    assert path.read_text() == "nonsense"


@pytest.mark.parametrize(("user", "password"), [("", b"x"), ("a\nb", b"x"), ("#a", b"x"), ("a:$b", b"x"), ("a", b"")])
def test_names_and_passwords_that_cannot_be(tmp_path: Path, user: str, password: bytes) -> None:
    """Impossible names and passwords are refused before anything is written."""
    with pytest.raises(InvalidArgumentError):
        set_password(tmp_path / "users", user, password)
    assert not (tmp_path / "users").exists()


def test_an_unknown_user_takes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifying an unknown user costs as much as a known one, so that the time tells nothing."""
    work: list[tuple[int, int, int]] = []
    matches = PasswordHash.matches

    def counted(self: PasswordHash, password: bytes) -> bool:
        work.append((self.cost, self.block_size, self.parallel))
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", counted)
    passwords = Passwords(read_passwords(LINE, "users"))
    assert not passwords.verify("pump", b"wrong")
    assert not passwords.verify("nobody", b"wrong")
    assert not passwords.verify("nobody", b"pleaseletmein")
    assert work == [(14, 8, 1)] * 3


def test_a_right_password_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    """A right password is cached until the file changes; wrong ones, and right ones of other users, are not."""
    path = tmp_path / "users"
    path.write_text(LINE)
    passwords = Passwords.load(path)
    assert not passwords.remembers("pump", b"pleaseletmein")
    assert not passwords.verify("pump", b"wrong")
    assert not passwords.remembers("pump", b"wrong")
    assert passwords.verify("pump", b"pleaseletmein")
    assert passwords.remembers("pump", b"pleaseletmein")
    assert not passwords.remembers("pump", b"wrong")
    assert not passwords.remembers("valve", b"pleaseletmein")
    path.write_text(f"# changed\n{LINE}")
    assert passwords.refresh() == frozenset()
    assert not passwords.remembers("pump", b"pleaseletmein")
