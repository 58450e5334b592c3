"""The build: metadata is in setup.cfg. Here are the commands of setuptools with the two things that it leaves open.

A wheel lists what it needs in ``.dist-info/sboms/`` (PEP 770), in CycloneDX. It contains no software of others.

Two builds of one commit are the same, byte for byte, if ``SOURCE_DATE_EPOCH`` is (seconds since 1970): no time, user or
permission of the building machine is in them. Without the variable, files keep their times.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
import time
import uuid
from collections.abc import Iterable
from email import message_from_string
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

__all__: list[str] = []


class Wheel(bdist_wheel):
    """With a bill of materials; no permissions of this machine."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        folder = Path(distinfo_path)
        bill = bill_of_materials((folder / "METADATA").read_text(encoding="utf-8"))
        (folder / "sboms").mkdir()
        (folder / "sboms/statestore-client.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")

    def write_wheelfile(self, *arguments: Any, **named: Any) -> None:
        """The last step before the files are packed."""
        super().write_wheelfile(*arguments, **named)
        for path in Path(self.bdist_dir).rglob("*"):
            if path.is_file():
                path.chmod(0o644)


class Sdist(sdist):
    """Packed with one time for all files, and without the user who builds it."""

    def make_archive(self, base_name: str, *_format: str, base_dir: str, **_owner: str | None) -> str:
        """As tar.gz, whatever the format."""
        name = Path(f"{base_name}.tar.gz")
        name.parent.mkdir(exist_ok=True)
        with (
            name.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=_built_at(time.time())) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(base_dir, filter=_neutral)
        return str(name)


def _built_at(otherwise: float) -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or otherwise)


def _neutral(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    member.mtime = _built_at(member.mtime)
    return member


def bill_of_materials(metadata: str) -> dict[str, Any]:
    """What the core metadata of a distribution says that it needs, as a CycloneDX 1.6 document."""
    fields = message_from_string(metadata)
    name, version = fields["Name"], fields["Version"]
    purl = f"pkg:pypi/{name}@{version}"
    needs = _by_project(fields.get_all("Requires-Dist", []))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, purl)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"id": "MIT"}}],
            }
        },
        "components": [_component(project, requirements) for project, requirements in needs.items()],
        "dependencies": [{"ref": purl, "dependsOn": [f"pkg:pypi/{project}" for project in needs]}],
    }


def _by_project(requirements: Iterable[str]) -> dict[str, list[str]]:
    """Normalized name of each project -> what is required of it, without and with extras."""
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        project = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
        found.setdefault(project, []).append(requirement)
    return dict(sorted(found.items()))


def _component(project: str, requirements: list[str]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{project}",
        "name": project,
        "purl": f"pkg:pypi/{project}",
        # No version: that is decided where it is installed.
        "scope": "optional" if all("extra ==" in requirement for requirement in requirements) else "required",
        "properties": [{"name": "python:requirement", "value": requirement} for requirement in requirements],
    }


setup(cmdclass={"bdist_wheel": Wheel, "sdist": Sdist})
