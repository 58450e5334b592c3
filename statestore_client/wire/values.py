"""How frequent values are made, of which a server makes several for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

__all__ = ["hot_value"]

if TYPE_CHECKING:
    from attrs import frozen as hot_value
else:
    #: ``attrs.frozen`` for the type checker only. Setting the fields of a frozen object takes three times as long,
    #: which was a tenth of the time of a request. Everybody treats these as frozen; encoders and caches rely on it.
    hot_value = attrs.define(unsafe_hash=True)
