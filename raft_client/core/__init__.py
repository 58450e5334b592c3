"""Decisions: leaders, requests, streams. Pure: no clock, no network, no threads, no randomness of its own."""
