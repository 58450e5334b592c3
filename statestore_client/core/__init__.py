"""Decisions, pure and deterministic: what to send, when to reconnect, whom to answer. No I/O, no threads, no clock."""
