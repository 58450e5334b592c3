"""The disk: a data directory with one sqlite database, and the gate that holds back what is not durable yet."""

from __future__ import annotations

from statestore_client.server.runtime.storage.database import FORMAT_VERSION, erase_data, open_database
from statestore_client.server.runtime.storage.gate import Gate
from statestore_client.server.runtime.storage.sqlite import SqliteStorage

__all__ = ["FORMAT_VERSION", "Gate", "SqliteStorage", "erase_data", "open_database"]
