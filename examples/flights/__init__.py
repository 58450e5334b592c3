"""An example: a year of flights becomes the latest state of each aircraft, written by Spark under a lock.

It uses what any application can use, the public names of ``statestore_client`` and its command ``statestore serve``.
"""

from __future__ import annotations

from .run import run_demo

__all__ = ["run_demo"]
