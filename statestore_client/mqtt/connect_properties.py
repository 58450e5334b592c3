"""What a client of the official broker says about itself in CONNECT, the same for both drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.wire.messages import METRIC_CATEGORY, PERSISTED

if TYPE_CHECKING:
    from statestore_client.settings import ConnectionSettings

__all__ = ["connect_user_properties"]


def connect_user_properties(settings: ConnectionSettings) -> tuple[tuple[str, str], ...]:
    """The user properties of CONNECT, in the order of the official SDKs (state store facts, 1.1)."""
    category = settings.metric_category
    named = () if category is None else ((METRIC_CATEGORY, category),)
    return (*named, PERSISTED) if settings.persist_session else named
