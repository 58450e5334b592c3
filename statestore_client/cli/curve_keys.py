"""``statestore keys``: of sites, and of the peers of a ``--log``."""

from raft_client._common.keys_command import keys as keys
