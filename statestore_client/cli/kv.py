"""``statestore kv``: what a site of the KvStore has, who its peers are, and what happens there."""

from __future__ import annotations

import click

from statestore_client.cli import kv_keys, kv_site

__all__ = ["kv"]


@click.group("kv")
def kv() -> None:
    """Look into a site of the KvStore, which `statestore serve --site NAME` runs, and change its keys."""


for _command in (
    kv_keys.keys, kv_keys.keyvals, kv_keys.nodes, kv_keys.snoop, kv_keys.set_key, kv_keys.erase_key,
    kv_site.peers, kv_site.add_peer, kv_site.remove_peer, kv_site.areas, kv_site.summary, kv_site.compare,
    kv_site.signature, kv_site.validate, kv_site.graph,
):  # fmt: skip
    kv.add_command(_command)
