"""The reference of both command lines has their commands, options, defaults and exit codes, and no others."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import click

from raft_client._common import exits
from raft_client.cli.app import cli as raft_cli
from statestore_client.cli import app as cli_module
from statestore_client.cli.app import cli

PAGES = Path(__file__).parents[2] / "docs" / "reference"
REFERENCE = PAGES / "cli.md"
RAFT_REFERENCE = PAGES / "zmqraft.md"


def test_every_command_and_option_is_described() -> None:
    """The reference has a section for each command, and each of its options stands in it."""
    text = REFERENCE.read_text()
    sections = dict(re.findall(r"^## `statestore (\w+)`$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    shared = re.search(r"^## Options of every client command$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert shared is not None
    context = click.Context(cli)
    assert set(sections) == set(cli.list_commands(context))
    for name in sections:
        command = cli.get_command(context, name)
        assert command is not None
        members = command.commands.values() if isinstance(command, click.Group) else (command,)
        options = {o for member in members for p in member.params if isinstance(p, click.Option) for o in p.opts}
        missing = {o for o in options if f"`{o}" not in sections[name] and f"`{o}" not in shared[1]}
        assert not missing, f"statestore {name}"
        if isinstance(command, click.Group):
            assert {c for c in command.commands if f"`statestore {name} {c} " not in sections[name]} == set()


def test_what_the_runbook_names_can_be_given() -> None:
    """Each command in the runbook's text and tables exists, with its options: blocks are run, these are not."""
    text = (PAGES.parent / "operations/runbook.md").read_text()
    named = re.findall(r"`((?:statestore|zmqraft) [^`]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))
    assert len(named) > 25
    for command in named:
        program, *words = command.partition(" > ")[0].split()
        found: click.Command = cli if program == "statestore" else raft_cli
        while isinstance(found, click.Group) and words and not words[0].startswith("-"):
            below = found.get_command(click.Context(found), words.pop(0))
            assert below is not None, command
            found = below
        options = {name for p in found.params if isinstance(p, click.Option) for name in p.opts}
        assert {word for word in words if word.startswith("--")} - {"--help"} <= options, command


def test_the_limits_of_serve_have_the_defaults_of_its_help() -> None:
    """The reference gives the limits of ``serve`` with the defaults of its help, in words where that is shorter."""
    text = REFERENCE.read_text().partition("## `statestore serve`")[2].partition("\n## ")[0]
    serve = cli.get_command(click.Context(cli), "serve")
    assert serve is not None
    limits = [p for p in _click_options(serve) if p.opts[0].startswith("--max-")]
    assert len(limits) > 15
    in_words = {604_800: "a week", 2**24: "16 MiB", 2**26: "64 MiB", 2**28: "256 MiB", 2**30: "1 GiB"}
    for option in limits:
        ((names, meaning),) = re.findall(rf"^\| (.*`{option.opts[0]} [^|]*) \| (.*) \|$", text, re.MULTILINE)
        told = re.search(r"Default: (.*?)(?:\. |$)", meaning)
        assert told is not None, option.opts[0]
        if isinstance(option.show_default, str):
            assert told[1] == option.show_default
            continue
        assert isinstance(option.default, int)
        place = re.findall(r"`(--[\w-]+)", names).index(option.opts[0])
        assert told[1].split(", ")[place] == in_words.get(option.default, f"{option.default:,}")


def test_every_raft_command_and_option_is_described() -> None:
    """The reference has a section for each command, with exactly its arguments, its options, and their defaults."""
    text = RAFT_REFERENCE.read_text()
    sections = dict(re.findall(r"^## `zmqraft ([\w-]+)`$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    shared = re.search(r"^## Options of every command$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert shared is not None
    commands = {name: raft_cli.get_command(click.Context(raft_cli), name) for name in raft_cli.list_commands(None)}
    assert set(sections) == set(commands)
    common = {"--help", *(o for p in _click_options(commands["config"]) for o in p.opts if o != "--json")}
    assert set(_option_rows(shared[1])) == common
    for name, command in commands.items():
        rows = _option_rows(sections[name])
        if isinstance(command, click.Group):
            members = command.commands.values()
            assert set(rows) == {o for p in chain(*map(_click_options, members)) for o in p.opts if o not in common}
            for member in members:
                usage = " ".join(member.collect_usage_pieces(click.Context(member))[1:])
                assert f"`zmqraft {name} {member.name} {usage}`".replace(" `", "`") in sections[name], member.name
            continue
        own = {o: p for p in _click_options(command) for o in p.opts if o not in common}
        assert set(rows) == set(own), f"zmqraft {name}"
        for option, parameter in own.items():
            shown = _shown_default(parameter)
            assert shown is None or f"Default: {shown}" in rows[option], f"zmqraft {name} {option}"
        usage = " ".join(command.collect_usage_pieces(click.Context(command))[1:])
        assert f"`zmqraft {name} {usage}`".replace(" `", "`") in sections[name], f"zmqraft {name}: its arguments"


def _click_options(command: click.Command) -> list[click.Option]:
    """Those that --help shows."""
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


def _option_rows(section: str) -> dict[str, str]:
    """Option -> what its row says; a row may begin with two names of one option."""
    rows = re.findall(r"^\| (`-[^|]*) \| (.*) \|$", section, re.MULTILINE)
    return {option: meaning for names, meaning in rows for option in re.findall(r"`(--?[\w-]+)", names)}


def _shown_default(parameter: click.Option) -> str | None:
    """As the reference writes it. Flags are off, and what depends on other things is described in words."""
    value = parameter.default
    if parameter.is_flag or not isinstance(value, (int, str, tuple, list)):
        return None
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return f"`{value}`" if isinstance(value, str) else str(value)


def test_every_exit_code_is_described() -> None:
    """The reference's table has each exit code of the command line, and no other; so has the module."""
    text = REFERENCE.read_text()
    (table,) = re.findall(r"^## Exit codes$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    codes = {code for name, code in vars(exits).items() if name.isupper()}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes
    told = re.findall(r"^(\d+) {2,}", str(cli_module.__doc__), re.MULTILINE)
    assert {int(code) for code in told} == codes - {exits.NOT_EXECUTABLE, exits.NOT_FOUND}  # these are its last words


def test_every_raft_exit_code_is_described() -> None:
    """The reference's table has each exit code of the command line, and no other."""
    (table,) = re.findall(r"^## Exit codes$(.*?)(?=^## )", RAFT_REFERENCE.read_text(), re.MULTILINE | re.DOTALL)
    codes = {code for name, code in vars(exits).items() if name.isupper()} - {exits.NOT_ADMITTED}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes
