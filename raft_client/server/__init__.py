"""ØMQ Raft peers: the algorithm (``node``), state machines on top (``machines``), and what runs both (``runtime``)."""
