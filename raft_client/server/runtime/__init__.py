"""What runs a ØMQ Raft peer on a machine: sockets, clock and disk. It does what the pure rooms say."""
