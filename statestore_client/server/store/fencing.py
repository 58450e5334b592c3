"""The fencing token algorithm.

========  =============  =============================================
mark      request token  result
========  =============  =============================================
none      none           accepted; the key stays unmarked
none      T              accepted; the key is marked with T
M         none           refused: a fencing token is required
M         T < M          refused: a lower version than the mark
M         T >= M         accepted; the key is marked with T
========  =============  =============================================

SET stores the resulting mark. DEL and VDEL are checked the same way, and the mark disappears with the key.
Source: state store protocol, "Fencing Token Algorithm".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore_client.errors import FencingTokenRequiredError, FencingTokenTooOldError

if TYPE_CHECKING:
    from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["pass_fence"]


def pass_fence(mark: HlcTimestamp | None, token: HlcTimestamp | None) -> HlcTimestamp | None:
    """The mark of the key after a request with ``token``. Raises a FencingError when the request must be refused."""
    if mark is None:
        return token
    if token is None:
        raise FencingTokenRequiredError
    if token is not mark and token < mark:
        raise FencingTokenTooOldError
    return token
