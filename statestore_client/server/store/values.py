"""What goes into the store and comes out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from statestore_client.server.checks import kind, number, required
from statestore_client.server.store.scan import ScanLimits
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from statestore_client.wire.hlc import HlcTimestamp
    from statestore_client.wire.instant import Instant
    from statestore_client.wire.notifications import Notification
    from statestore_client.wire.replies import Reply

__all__ = ["Change", "Outcome", "RequestContext", "StoreLimits", "StoreUsage"]


@attrs.frozen
class StoreLimits:
    """The quotas: bytes count keys, values, observed keys, and a fixed overhead for each. Observations have quotas of
    their own, so that those who may only watch cannot use up what is there to be written. Each quota is for all clients
    together, and has an eighth more for users who have little; see ``server.shares``. Those *per
    user* do not bound clients without a user; 0 is any number. A key is its last writer's.

    Raises InvalidArgumentError for what is not a limit.
    """

    max_keys: int = attrs.field(default=1_000_000, validator=number(1))
    max_bytes: int = attrs.field(default=1_073_741_824, validator=number(1))
    max_keys_per_user: int = attrs.field(default=0, validator=number(0))
    max_bytes_per_user: int = attrs.field(default=0, validator=number(0))
    max_observations: int = attrs.field(default=1_000_000, validator=number(1))
    max_observation_bytes: int = attrs.field(default=268_435_456, validator=number(1))
    max_observations_per_user: int = attrs.field(default=0, validator=number(0))
    max_observation_bytes_per_user: int = attrs.field(default=0, validator=number(0))
    # What one client may observe: where there are no users, nothing else is between it and the quota of everybody.
    max_observations_per_client: int = attrs.field(default=50_000, validator=number(1))
    max_observation_bytes_per_client: int = attrs.field(default=67_108_864, validator=number(1))
    scan: ScanLimits = attrs.field(factory=ScanLimits, validator=required(kind(ScanLimits)))


@attrs.frozen
class StoreUsage:
    """What the quota is compared with, and the quota. ``unlisted_keys`` are those that are not UTF-8: no SCAN lists
    them.
    """

    keys: int
    unlisted_keys: int
    bytes: int
    observations: int
    observation_bytes: int
    limits: StoreLimits


@hot_value
class Change:
    """One observer is to be told that ``key`` changed."""

    client_id: str
    key: bytes
    notification: Notification
    version: HlcTimestamp


@hot_value
class Outcome:
    """What a command came to. ``changes`` are in the order in which they happened, and to be sent in that order.

    ``version`` belongs into the reply's ``__ts``; None where no version exists: GET and deletion of a missing key,
    KEYNOTIFY, SCAN, and every refusal. ``is_kept``: what was changed is there after a restart, so the answer must be.
    """

    reply: Reply
    version: HlcTimestamp | None = None
    changes: tuple[Change, ...] = ()
    is_kept: bool = True


@hot_value
class RequestContext:
    """What came with the command."""

    client_id: str
    timestamp: HlcTimestamp | None
    fencing_token: HlcTimestamp | None
    now: Instant
    user: str | None = None  # whose client it is, None for nobody's in particular
