"""``hot_value`` makes the classes of which there are hundreds of thousands of values per second: those on the hot path.

They compare by value and can be hashed. The type checker takes them for ``attrs.frozen`` and refuses to assign to their
fields; at run time nothing does, because setting the fields of a frozen object takes three times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

__all__ = ["hot_value"]

if TYPE_CHECKING:
    from attrs import frozen as hot_value
else:
    hot_value = attrs.define(unsafe_hash=True)
