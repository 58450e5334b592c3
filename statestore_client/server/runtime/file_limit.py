"""How many files the process may have open: every connection is one."""

from __future__ import annotations

from contextlib import suppress

__all__ = ["file_limit", "raise_file_limit"]


def file_limit() -> int | None:
    """How many it may have open now. None if nobody knows, or any number."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def raise_file_limit() -> None:
    """Take as many as the system allows without asking. The usual 1,024 are for programs that use select()."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS knows a lower limit that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
