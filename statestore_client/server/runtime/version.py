"""Which version this is."""

from __future__ import annotations

from functools import cache

__all__ = ["package_version"]


@cache
def package_version() -> str:
    """Of the installed package, "unknown" for a checkout. Looking it up takes a while: not at the start."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("statestore-client")
    except PackageNotFoundError:
        return "unknown"
