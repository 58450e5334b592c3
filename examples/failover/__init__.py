"""An example: three servers with one replicated log lose the active one under load, and nothing that they said.

It uses what any application can use, the public names of ``statestore_client`` and its command line.
"""

from __future__ import annotations

from .run import run_demo

__all__ = ["run_demo"]
