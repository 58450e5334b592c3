"""The client of ØMQ Raft clusters. Reserved: nothing is released in this package yet."""

__all__: list[str] = []
