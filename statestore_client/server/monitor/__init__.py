"""What the monitor remembers of a running server, as values: who held which lock, what changed, how long it took."""
