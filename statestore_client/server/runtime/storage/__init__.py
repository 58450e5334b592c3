"""The disk: a data directory with a log-structured store, and the commit that holds back what is not durable yet."""

from __future__ import annotations

from statestore_client.server.runtime.storage.directory import erase_data
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.server.runtime.storage.files import FORMAT_VERSION
from statestore_client.server.runtime.storage.group_commit import GroupCommit

__all__ = ["FORMAT_VERSION", "DiskStorage", "GroupCommit", "erase_data"]
