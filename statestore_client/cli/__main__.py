"""``python -m statestore_client.cli``: the ``statestore`` command where no script is installed."""

from statestore_client.cli import main

main()
