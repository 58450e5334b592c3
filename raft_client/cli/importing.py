"""``zmqraft import-log``: the data folder of a Node peer, for one of our peers in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from raft_client.cli import exits
from raft_client.cli.backups import contents
from raft_client.cli.output import print_line, warn
from raft_client.cli.peer_options import cluster_option, members_option
from raft_client.server.runtime.storage.log_import import import_log

if TYPE_CHECKING:
    from raft_client.wire.configuration import Peers


@click.command("import-log")
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option("--id", "peer_id", required=True, metavar="ID", help="Which of the peers it is: as the Node peer's.")
@members_option(
    "A member of the cluster, as the Node peer was configured; once for each. Not needed if the members were "
    "changed since: then the folder says who they are."
)
@cluster_option("The cluster ident ('secret' of the Node peer).")
def import_node_log(source: str, directory: str, *, peer_id: str, peers: Peers, cluster: str) -> int:
    """Make the new data directory DIR of the folder SOURCE of a Node peer, which one of our peers then replaces.

    It has the same entries, request ids, term and vote, and the snapshot. Stop the Node peer first, and never start it
    again: two peers would vote under one ID.
    """
    found = import_log(source, directory, peer_id=peer_id, ident=cluster.encode(), peers=peers)
    print_line(f"{directory} has {contents(found)}")
    if found.snapshot is not None and not found.members_known:
        warn(
            "the folder does not say for certain who the members are: the peer votes, but does not stand for election "
            "until the log has a list of them (zmqraft add-peer)"
        )
    return exits.DONE
