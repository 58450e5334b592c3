"""Writes the table of attacks into ``docs/explanation/security-model.md``, from the tests that carry them out.

    python tools/attacks.py            write it
    python tools/attacks.py --check    exit code 1 if it is another one

A test says what it attacks with ``@pytest.mark.attack("door", "what is tried")``. A row whose test is gone cannot stay,
and a new attack is in the table when its test is marked.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/explanation/security-model.md"
#: Around the table, in the page.
BEGIN: Final = "<!-- attacks: made by tools/attacks.py -->\n"
END: Final = "<!-- end of attacks -->\n"


def attacks_in(file: Path) -> Iterator[tuple[str, str, str]]:
    """Door, attack and test of each marked test of a file."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.attack":
                door, attack = (ast.literal_eval(argument) for argument in decorator.args)
                yield door, attack, f"{file.stem}::{node.name}"


def table() -> str:
    """In Markdown: a row an attack, by door; attacks of several tests are one row."""
    tests: dict[tuple[str, str], list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for door, attack, test in attacks_in(file):
            tests.setdefault((door, attack), []).append(f"`{test}`")
    rows = [f"| {door} | {attack} | {', '.join(sorted(tests[door, attack]))} |" for door, attack in sorted(tests)]
    return "\n".join(["| Door | What is tried | Test |", "|---|---|---|", *rows]) + "\n"


def main() -> int | str:
    """The exit code, or what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = before + BEGIN + "\n" + table() + "\n" + END + after
    if made == text:
        return 0
    if options.check:
        return f"{PAGE.name} is not what the tests say: python tools/attacks.py"
    PAGE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
