"""Bytes <-> values, both directions. Pure: no input or output, no clock, no randomness."""
