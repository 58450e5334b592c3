"""Sockets, clock, disk and the wiring of the server: the one room that touches the world."""
