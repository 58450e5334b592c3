"""The command group, and what every command does with errors.

Exit codes, the same for all commands:

====  ==========================================================================================
0     done
1     a negative answer: the log does not have that index (any more), no such peer, a peer that is down
2     the command line or the environment cannot be used; nothing was sent
3     the cluster refused (expired id, list of peers, another change of peers, a new leader), or broke the protocol
4     no leader, or no answer in time; an append may have taken effect, and the message says so
5     the lease of a key is lost, which ``kv put --lease-ttl`` kept
6     the data directory of a peer cannot be used, or its disk failed
7     standard output is closed or cannot be written; what was asked for may be done
8     some lines cannot be entries; the others were appended
10    a peer cannot listen: its address is taken, or not of this machine
126   what ``watch`` should run cannot be executed
127   what ``watch`` should run does not exist
130   interrupted (Ctrl-C), which is also how ``tail --follow`` and ``watch`` are ended
====  ==========================================================================================
"""

from __future__ import annotations

from typing import Final, NoReturn

import click

from raft_client._common import exits
from raft_client._common.command_line import LazyGroup, run_command_line
from raft_client.cli.options import for_any_command, reword
from raft_client.errors import (
    HistoryOutrunError,
    InvalidArgumentError,
    LeaseEndedError,
    LogError,
    NoLeaderError,
    RaftError,
    StorageError,
    TransportError,
)

#: Module and object of each command.
_COMMANDS: Final = {
    "add-peer": "cluster:add_peer",
    "append": "append:append",
    "backup": "data_directories:backup",
    "bench": "bench:bench",
    "check": "data_directories:check_data",
    "config": "cluster:config",
    "del": "keys:delete_key",
    "dump": "entries:dump",
    "get": "keys:get_key",
    "import-log": "data_directories:import_node_log",
    "info": "cluster:info",
    "keys": "raft_client._common.keys_command:keys",
    "kv": "key_values:kv",
    "ping": "cluster:ping",
    "remove-peer": "cluster:remove_peer",
    "restore": "data_directories:restore_backup",
    "serve": "serve:serve",
    "set": "keys:set_key",
    "snapshot": "cluster:snapshot",
    "tail": "entries:tail",
    "transfer": "cluster:transfer",
    "trim": "cluster:trim",
    "watch": "keys:watch",
}


@click.group(
    cls=LazyGroup,
    room="raft_client.cli",
    places=_COMMANDS,
    errors=RaftError,
    reword=reword,
    epilog="Exit codes: 0 done, 1 negative answer, 2 usage, 3 refused by the cluster, 4 no leader or no answer, "
    "5 a lease is lost, 6 a data directory cannot be used, 7 no standard output, 8 some lines were not appended, "
    "10 an address is taken, 126 and 127 what watch should run cannot be run, 130 interrupted.",
)
@click.version_option(package_name="statestore-client")
@for_any_command
def cli() -> None:
    """Append to, read and watch the replicated log of a ØMQ Raft cluster, and manage its peers.

    Try it: a cluster of one peer, and an entry

    
      zmqraft serve --id 1 --peer 1=tcp://127.0.0.1:8047 --data log &
      export ZMQRAFT_URL=tcp://127.0.0.1:8047
      zmqraft append --data hello && zmqraft tail

    Peers are named by --url or by the environment variable ZMQRAFT_URL; every setting has a variable, too
    (ZMQRAFT_SEEDS, ZMQRAFT_CLUSTER, ZMQRAFT_REQUEST_TIMEOUT, ZMQRAFT_CURVE_SERVER_KEY, ...).
    """


def main() -> NoReturn:
    """Run the command line; errors become one line on standard error and an exit code."""
    run_command_line("zmqraft", cli, RaftError, _exit_code, _advice)


def _exit_code(error: RaftError) -> int:
    if isinstance(error, StorageError):
        return exits.DATA
    if isinstance(error, LogError):
        return exits.NEGATIVE
    if isinstance(error, InvalidArgumentError):
        return exits.USAGE
    if isinstance(error, LeaseEndedError):
        return exits.LEASE_LOST
    return exits.NO_CONNECTION if isinstance(error, TransportError) else exits.REFUSED


def _advice(error: RaftError) -> str:
    """What to do about it, where that is not obvious."""
    if isinstance(error, HistoryOutrunError):
        return "; go on after the snapshot (--skip-snapshot) or with it (dump --snapshot FILE, watch --relist)"
    if error.may_have_been_applied and error.request_id is not None:
        return f"; it may have been appended all the same: repeat it with --request-id {error.request_id}"
    if isinstance(error, NoLeaderError):
        return "; check the URLs, and ask each peer: zmqraft info"
    return ""
