"""Whether the types of all public names are complete, as pyright sees them in the installed wheel.

    python tools/public_types.py

A public name is complete if every parameter, attribute and base class of it, and of what these refer to, has a type
that is written down: what type checkers infer, they infer differently. What no public name leads to may have gaps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from typing import Any, Final

#: As docs/stability.md has them.
MODULES: Final = {
    "statestore_client": (
        "statestore_client",
        "statestore_client.kvstore",
        "statestore_client.recipes",
        "statestore_client.server",
        "statestore_client.spark",
    ),
    "raft_client": ("raft_client", "raft_client.server", "raft_client.spark"),
}


def report(package: str) -> dict[str, Any]:
    """What pyright says of the completeness of a package."""
    command = [sys.executable, "-m", "pyright", "--ignoreexternal", "--outputjson", "--verifytypes", package]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 - our own command
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    return found


def incomplete(package: str, symbols: list[dict[str, Any]]) -> set[str]:
    """The public names that lead to something without a type; also those that pyright does not know at all."""
    complete = {s["name"] for s in symbols if s["isTypeKnown"] and not s["isTypeAmbiguous"]}
    public = {f"{module}.{name}" for module in MODULES[package] for name in import_module(module).__all__}
    return public - complete


def causes(symbols: list[dict[str, Any]]) -> list[str]:
    """Where a type is not written down, anywhere in the package."""
    found = [d for symbol in symbols for d in symbol.get("diagnostics", ()) if "Inferred type" in d["message"]]
    return sorted({f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in found})


def main() -> int:
    """Print the names at fault; the exit code is 1 if there are any."""
    failed = False
    for package in MODULES:
        found = report(package)
        lines = [f"{package}: {found['completenessScore']:.1%} of all names are complete"]
        if names := incomplete(package, found["symbols"]):
            failed = True
            lines += [
                "Public, and not complete:",
                *sorted(names),
                "Because of some of these:",
                *causes(found["symbols"]),
            ]
        sys.stdout.write("\n".join([*lines, ""]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
