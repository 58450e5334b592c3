"""An example: flights go through a replicated log and Spark into the state of each aircraft, by one driver of two.

It uses what any application can use: public names, and the commands ``statestore serve`` and ``zmqraft serve``.
"""

from __future__ import annotations

from .run import run_demo

__all__ = ["run_demo"]
