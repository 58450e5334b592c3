#!/usr/bin/env python3
"""Check that what ``make dist`` has built can be published, and say what is missing.

``make release`` runs it after two builds that must be the same. ``--dry-run`` leaves out what is true of a release
alone: the date in the change log, the public addresses in the metadata, a clean working tree and a free tag.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What project pages of a package index link to.
ADDRESSES = ("Source", "Documentation", "Changelog", "Issues")
#: What each wheel has beside the modules.
_BESIDE = ("statestore_client/py.typed", "raft_client/py.typed", "licenses/LICENSE", "sboms/statestore-client.cdx.json")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check that dist/ can be published.")
    parser.add_argument("--dry-run", action="store_true", help="leave out what is true of a release alone")
    dry_run = parser.parse_args(arguments).dry_run
    version = _version(ROOT)
    problems = [*wrong_files(ROOT / "dist", version), *wrong_changelog(ROOT, version, dry_run)]
    if not dry_run:
        problems += [*wrong_addresses(ROOT / "dist"), *wrong_tree(ROOT, version)]
    for problem in problems:
        sys.stderr.write(f"release: {problem}\n")
    if problems:
        return 1
    done = "dist/ is sound" if dry_run else f"dist/ can be published: git tag v{version}, and upload it"
    sys.stdout.write(f"release: {done}\n")
    return 0


def _version(root: Path) -> str:
    setup = ConfigParser()
    setup.read(root / "setup.cfg", encoding="utf-8")
    return setup["metadata"]["version"]


def wrong_files(dist: Path, version: str) -> Iterator[str]:
    """What is wrong with the files: one wheel and one source distribution of this version, each with its licence."""
    stem = f"statestore_client-{version}"
    expected = {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"}
    there = {path.name for path in dist.glob("*")}
    for name in sorted(expected - there):
        yield f"{name} is not in dist/: run make dist"
    for name in sorted(there - expected):
        yield f"dist/{name} is of another version: remove it, or it is uploaded as well"
    if expected - there:
        return
    with zipfile.ZipFile(dist / f"{stem}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
    for name in _BESIDE:
        if not any(each.endswith(name) for each in names):
            yield f"the wheel has no {name}"
    metadata = _metadata(dist)
    if (metadata["Version"], metadata["License-Expression"]) != (version, "MIT"):
        yield f"the wheel says version {metadata['Version']} and licence {metadata['License-Expression']}"
    with tarfile.open(dist / f"{stem}.tar.gz") as source:
        if f"{stem}/LICENSE" not in source.getnames():
            yield "the source distribution has no LICENSE"


def _metadata(dist: Path) -> Message:
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))


def wrong_changelog(root: Path, version: str, dry_run: bool) -> Iterator[str]:
    """What is wrong with the newest section of the change log: it is this version's, and has a date."""
    found = re.search(r"^## (\S+)(?: \((.*)\))?$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None or found[1] != version:
        yield f"CHANGELOG.md begins with {found and found[1]}, setup.cfg has version {version}"
    elif not dry_run and re.fullmatch(r"20\d\d-\d\d-\d\d", found[2] or "") is None:
        yield f"CHANGELOG.md says {version} ({found[2]}): put the date of the release there"


def wrong_addresses(dist: Path) -> Iterator[str]:
    """Which public addresses the metadata lacks. Links of the README that stay in the clone are dead without them."""
    if not list(dist.glob("*.whl")):
        return
    named = {each.partition(",")[0] for each in _metadata(dist).get_all("Project-URL", [])}
    for label in ADDRESSES:
        if label not in named:
            yield f"setup.cfg has no {label} in project_urls: say where it is public"


def wrong_tree(root: Path, version: str) -> Iterator[str]:
    """What is wrong with the working tree: nothing is changed, and the tag is free."""

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603 (words of ours)
        return done.stdout.strip()

    if git("status", "--porcelain"):
        yield "the working tree has changes: commit them, and build again"
    if git("tag", "--list", f"v{version}"):
        yield f"the tag v{version} is there already: set another version in setup.cfg"


if __name__ == "__main__":
    sys.exit(main())
