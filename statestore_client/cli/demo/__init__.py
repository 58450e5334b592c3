"""``statestore demo``: a year of flights becomes the latest state of each aircraft, written by Spark under a lock."""

from __future__ import annotations

from statestore_client.cli.demo.run import run_demo

__all__ = ["run_demo"]
