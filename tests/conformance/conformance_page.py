"""``tests/conformance/statements.md`` from the statements and the tests that name them. To write it again::

python tests/conformance/conformance_page.py
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import attrs

__all__ = ["NO_FILE", "PAGE", "Statement", "coverage", "page", "statements"]

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "statements.md"

#: Version, as the decorator calls it -> file and title.
_SOURCES: Final = {
    "v5": ("statements_5_0.txt", "MQTT 5.0"),
    "v3": ("statements_3_1_1.txt", "MQTT 3.1.1"),
    "more": ("statements_beyond.txt", "Beyond the letter"),
}
_SERVER: Final = "server"
_CLIENT: Final = "client"

#: Nothing has to be done for it.
NO_FILE: Final = "-"

_HEAD: Final = """\
# MQTT, statement by statement

The two standards number what an implementation *must* do: `[MQTT-3.1.2-4]` and the like. This page lists all of these
statements, in our words, each with the file below `statestore_client/` that makes it true, and the tests that hold the
embedded server's broker to it; for the others it says why there is no test. What clients are asked has the file of this
package's client. The page is made from the tests; a test fails when the two differ. Tests named `file::function` lie
in `tests/conformance/`: they write every packet byte by byte, and read the answers with a decoder of their own. A test
file alone lies below `tests/server/` or in `tests/cli/`.

Where the standards leave a choice, [the page about MQTT](../../docs/reference/mqtt.md) says which one it is. Where a
reason code differs from the standard's for the sake of the public test suites of clients, the test says so.
"""

_TABLE_HEAD: Final = "| Statement | What it asks | File | Test |\n|---|---|---|---|\n"

_INTRODUCTIONS: Final = {
    "more": """\
F: what other brokers were seen to do wrong, or do differently from what clients lean on. The other letters are those of
the design that the broker follows, the MQTT implementation of NATS, its known issues and open points (K) included.

"""
}


@attrs.frozen
class Statement:
    """One normative statement. ``concerns`` is ``server``, ``client``, a test file of another folder, or the reason
    why there is nothing to test. ``file``, below ``statestore_client/``, makes it true; ``-`` for none.
    """

    number: str
    concerns: str
    file: str
    summary: str

    @property
    def is_tested(self) -> bool:
        return self.concerns == _SERVER


def statements(version: str) -> list[Statement]:
    """All of ``v5``, ``v3`` or ``more``, in their order."""
    lines = (HERE / _SOURCES[version][0]).read_text().splitlines()
    return [Statement(*line.split(" | ")) for line in lines]


def coverage() -> dict[tuple[str, str], list[str]]:
    """(version, statement number) -> the tests that name it, from their ``@normative`` decorators."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for version, number in _named(node):
                found.setdefault((version, number), []).append(f"{path.stem}::{node.name}")
    return found


def _named(function: ast.FunctionDef) -> list[tuple[str, str]]:
    calls = [item for item in function.decorator_list if isinstance(item, ast.Call)]
    names = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "normative"]
    return [
        (str(keyword.arg), number)
        for call in names
        for keyword in call.keywords
        for number in str(ast.literal_eval(keyword.value)).split()
    ]


def page() -> str:
    """The whole page."""
    tests = coverage()
    parts = [_HEAD]
    for version, (_, title) in _SOURCES.items():
        parts.append(f"\n## {title}\n\n{_INTRODUCTIONS.get(version, '')}{_TABLE_HEAD}")
        parts += [_row(statement, tests.get((version, statement.number), [])) for statement in statements(version)]
    return "".join(parts)


def _row(statement: Statement, tests: list[str]) -> str:
    if statement.concerns == _CLIENT:
        told = "*for clients*"
    elif statement.concerns.startswith("`"):
        told = statement.concerns  # a file of another folder
    elif not statement.is_tested:
        told = f"*none: {statement.concerns}*"
    else:
        told = ", ".join(f"`{test}`" for test in tests)
    number = statement.number if statement.number[0].isalpha() else f"MQTT-{statement.number}"
    file = "" if statement.file == NO_FILE else f"`{statement.file}`"
    return f"| {number} | {statement.summary} | {file} | {told} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
