"""``zmqraft keys``: of peers and their clients."""

from raft_client._common.keys_command import keys as keys
