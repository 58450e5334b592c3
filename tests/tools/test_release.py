"""The check before a release: what is missing is said, and a dry run asks for nothing that only a release has."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
import release

STEM = "statestore_client-1.2.0"
INFO = f"{STEM}.dist-info"
METADATA = "Metadata-Version: 2.4\nName: statestore-client\nVersion: {version}\nLicense-Expression: MIT\n{more}\n"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder with a wheel and a source distribution of version 1.2.0."""
    build(tmp_path / "dist")
    return tmp_path / "dist"


def build(folder: Path, *, version: str = "1.2.0", without: str = "nothing", more: str = "") -> None:
    folder.mkdir(exist_ok=True)
    names = ["statestore_client/py.typed", "raft_client/py.typed"]
    names += [f"{INFO}/licenses/LICENSE", f"{INFO}/sboms/statestore-client.cdx.json"]
    with zipfile.ZipFile(folder / f"{STEM}-py3-none-any.whl", "w") as wheel:
        for name in names:
            if not name.endswith(without):
                wheel.writestr(name, "")
        wheel.writestr(f"{INFO}/METADATA", METADATA.format(version=version, more=more))
    with tarfile.open(folder / f"{STEM}.tar.gz", "w:gz") as source:
        source.addfile(tarfile.TarInfo(f"{STEM}/{'README.md' if without == 'LICENSE' else 'LICENSE'}"), io.BytesIO())


def changelog(folder: Path, title: str) -> Path:
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {title}\n\n## 1.1.0 (2026-01-01)\n", encoding="utf-8")
    return folder


def test_files_of_one_version_are_sound(dist: Path) -> None:
    """One wheel and one source distribution, with licence, types and a bill of materials."""
    assert list(release.wrong_files(dist, "1.2.0")) == []


def test_files_of_another_version_are_named(dist: Path) -> None:
    """What is missing is named, and what would be uploaded as well."""
    told = list(release.wrong_files(dist, "1.3.0"))
    assert len(told) == 4
    assert told[0] == "statestore_client-1.3.0-py3-none-any.whl is not in dist/: run make dist"
    assert f"dist/{STEM}.tar.gz is of another version" in told[-1]


@pytest.mark.parametrize("without", ["py.typed", "LICENSE", "cdx.json"])
def test_a_wheel_without_what_belongs_to_it_is_refused(dist: Path, without: str) -> None:
    """Types, licence and bill of materials are looked for in the files themselves."""
    build(dist, without=without)
    assert list(release.wrong_files(dist, "1.2.0")) != []


def test_a_wheel_that_says_another_version_is_refused(dist: Path) -> None:
    """The name of the file is not enough."""
    build(dist, version="1.2.0rc1")
    assert list(release.wrong_files(dist, "1.2.0")) == ["the wheel says version 1.2.0rc1 and licence MIT"]


def test_a_release_has_a_date_and_a_dry_run_need_not(tmp_path: Path) -> None:
    """The change log begins with the version that is built."""
    changelog(tmp_path, "1.2.0 (unreleased)")
    assert list(release.wrong_changelog(tmp_path, "1.2.0", dry_run=True)) == []
    assert "put the date" in next(release.wrong_changelog(tmp_path, "1.2.0", dry_run=False))
    assert "begins with 1.2.0" in next(release.wrong_changelog(tmp_path, "1.3.0", dry_run=True))
    changelog(tmp_path, "1.2.0 (2026-12-01)")
    assert list(release.wrong_changelog(tmp_path, "1.2.0", dry_run=False)) == []


def test_a_release_says_where_it_is_public(dist: Path) -> None:
    """Each address of the project is asked for by its name."""
    assert len(list(release.wrong_addresses(dist))) == len(release.ADDRESSES)
    build(dist, more="".join(f"Project-URL: {label}, https://pumps.example/\n" for label in release.ADDRESSES))
    assert list(release.wrong_addresses(dist)) == []


def test_this_repository_says_the_same_version_twice() -> None:
    """The change log begins with the version of setup.cfg."""
    assert list(release.wrong_changelog(release.ROOT, release._version(release.ROOT), dry_run=True)) == []
