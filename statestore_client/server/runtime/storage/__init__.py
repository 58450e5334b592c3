"""The disk: a data directory with a log-structured store, and the gate that holds back what is not durable yet."""

from __future__ import annotations

from statestore_client.server.runtime.storage.database import FORMAT_VERSION
from statestore_client.server.runtime.storage.directory import erase_data
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.server.runtime.storage.gate import Gate

__all__ = ["FORMAT_VERSION", "DiskStorage", "Gate", "erase_data"]
