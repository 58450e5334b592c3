"""``statestore info``: which version, directory and settings a server runs with, as it says at ``/info``."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

from raft_client._common import exits
from raft_client._common.command_line import print_json, print_line
from statestore_client.cli.monitor import MonitorAddress, monitor_address, read_page
from statestore_client.errors import InvalidArgumentError


@click.command("info")
@monitor_address
@click.option("--all", "show_all", is_flag=True, help="Also the settings that have their defaults.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object on a line, with all settings.")
def info(*, address: MonitorAddress | None, show_all: bool, json_output: bool) -> int:
    """Print version, role, directory and settings of a server. Passwords and keys are left out.

    URL is that of --metrics-port, http://host:port, or of --monitor-port, which asks for a password if the server has
    any.
    """
    if address is None:
        raise click.UsageError("give the URL of a server: http://host:port of --metrics-port or --monitor-port")
    found = _read(address)
    if json_output:
        print_json(found)
    else:
        _print(found, show_all=show_all)
    return exits.DONE


def _read(address: MonitorAddress) -> dict[str, Any]:
    page = read_page(address, "/info")
    try:
        found = None if page is None else json.loads(page)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "settings" not in found:
        raise InvalidArgumentError(
            f"{address.url} says nothing of itself: is it the --metrics-port or --monitor-port of a server, and of "
            "this release?"
        )
    return found


def _print(found: dict[str, Any], *, show_all: bool) -> None:
    print_line(f"version {found['version']}, Python {found['python']}, process {found['pid']} on {found['host']}")
    print_line(f"runs for {timedelta(seconds=int(found['uptime_s']))}, since {found['started_at']}")
    print_line(f"{found['kind']}, {_role(found)}")
    if found["directory"] is not None:
        print_line(f"directory: {found['directory']}{_format(found['format'])}")
    for url in found["urls"]:
        print_line(url)
    names = found["settings"] if show_all else found["changed"]
    for name in names:
        print_line(f"{name} = {_value(found['settings'][name])}")


def _role(found: dict[str, Any]) -> str:
    log = found["log"]
    if log is None:
        return str(found["role"])
    active = "" if log["role"] == "active" else f"; active: {log['active'] or 'no server'}"
    return f"{log['id']} is {log['role']} in epoch {log['epoch']}{_format(log['format'])}, at {log['internal']}{active}"


def _format(number: int | None) -> str:
    return "" if number is None else f", format {number}"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
