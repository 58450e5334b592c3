"""How the values are made of which there are hundreds of thousands per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

__all__ = ["hot_value"]

if TYPE_CHECKING:
    from attrs import frozen as hot_value
else:
    #: ``attrs.frozen`` for the type checker only: setting the fields of a frozen object takes three times as long.
    #: Everybody treats these as frozen.
    hot_value = attrs.define(unsafe_hash=True)
