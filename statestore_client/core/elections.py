"""Elections: of several candidates one leads for a term, and the next one takes over when it resigns or is gone.

An election is a lock under other names: the leader holds it, the term is the lease, the candidate is the holder. Only
its use differs. A lock is taken for a piece of work and given back; a leader leads until something ends its
leadership, and all others want to know who leads. The key is the one that the official SDKs' leader election uses,
so candidates in .NET take part (state store facts, 3.2).
"""

from __future__ import annotations

import attrs

from statestore_client.core.locks import LockTerms
from statestore_client.core.waiting import within
from statestore_client.errors import LockNotAcquiredError, RequestTimeoutError

__all__ = ["ElectionTerms"]


@attrs.frozen
class ElectionTerms(LockTerms):
    """The terms of a lock, in the words of an election."""

    lease_word = "term"
    holder_word = "candidate"

    def not_acquired(self, timeout: float) -> LockNotAcquiredError:
        """The error of a candidate that campaigned in vain while another one led."""
        return LockNotAcquiredError(f"the election {self.name} was not won {within(timeout)}: another one leads")

    def not_known(self, timeout: float, why: str) -> RequestTimeoutError:
        """The error of a candidate that campaigned in vain and could not learn who leads."""
        return RequestTimeoutError(
            f"the election {self.name} was not won {within(timeout)}, and who leads is not known: {why}"
        )
