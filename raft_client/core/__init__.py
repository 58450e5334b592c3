"""Decisions: leaders, requests, streams. Pure: no clock, no network, no threads, no chance of its own."""
