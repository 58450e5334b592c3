"""Bytes <-> values of ØMQ Raft, in both directions. Pure: no clock, no network, no threads."""
