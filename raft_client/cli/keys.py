"""``zmqraft set | del``: entries of the key/value format, which ``zmqraft watch`` reads."""

from __future__ import annotations

import click

from raft_client.cli import exits
from raft_client.cli.appending import append_one, request_id_option
from raft_client.cli.connection import connection_options
from raft_client.cli.output import argument_bytes
from raft_client.codecs import KeyValueCodec
from raft_client.settings import RaftSettings

__all__ = ["delete_key", "set_key"]

_json = click.option("--json", "json_output", is_flag=True, help="One JSON object on one line.")


@click.command("set")
@click.argument("key")
@click.argument("value")
@request_id_option
@_json
@connection_options
def set_key(key: str, value: str, *, request_id: str | None, json_output: bool, settings: RaftSettings) -> int:
    """Append an entry that sets KEY to VALUE, and print its index."""
    append_one(KeyValueCodec.set(argument_bytes(key), argument_bytes(value)), request_id, json_output, settings)
    return exits.DONE


@click.command("del")
@click.argument("key")
@request_id_option
@_json
@connection_options
def delete_key(key: str, *, request_id: str | None, json_output: bool, settings: RaftSettings) -> int:
    """Append an entry that deletes KEY, and print its index. The log does not tell whether there was one."""
    append_one(KeyValueCodec.delete(argument_bytes(key)), request_id, json_output, settings)
    return exits.DONE
