"""``python -m raft_client.cli``: the ``zmqraft`` command where no script is installed."""

from raft_client.cli import main

main()
