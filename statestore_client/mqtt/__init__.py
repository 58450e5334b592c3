"""MQTT: the pure packet codec in ``packets``, and the client drivers."""

from __future__ import annotations

__all__: list[str] = []
