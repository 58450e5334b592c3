"""ØMQ Raft peers: the algorithm (``node``), the state machines on top (``machines``), and what runs both (``runtime``)."""
