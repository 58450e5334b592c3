"""The search for the leader: all known peers are asked at once, again and again, until one says that it leads.

The document (ØMQ Raft protocol, "broken known leader state") asks them one at a time and believes what they say of each
other. Asked in parallel, a dead peer costs no time-out. And here only the leader's own word counts, so that two peers
that name each other cannot keep a client busy: whom they name is asked first, alone, or asked as well. The reference
(docs/reference/raft.md, "Otherwise than the document") lists this with the other differences.

Invariant: a peer has at most one question unanswered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from random import Random

    from raft_client.wire.client_requests import ConfigReply, LogInfoReply

# -- pauses ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Backoff:
    """``first`` · ``factor``^n, capped, minus up to ``jitter`` of itself. Seconds.

    Jitter keeps a thousand clients, who all saw the leader die in the same instant, from asking in the same instants.
    """

    first: float = 0.025
    factor: float = 1.25
    cap: float = 0.3
    jitter: float = 0.4

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds before attempt number ``attempt``; the first repetition is 0."""
        # Beyond a hundred attempts the cap has long won, and the power of a float would overflow.
        full = min(self.cap, self.first * self.factor ** min(attempt, 100))
        return full * (1.0 - self.jitter * random.random())


#: A connection that neither opens nor fails is given up after this many response time-outs: a firewall drops it.
_HANGING: Final = 5
_SILENT: Final = "does not answer"
_NOT_REACHED: Final = "could not be reached"


@attrs.define(eq=False)
class _Candidate:
    """One peer during the search."""

    asked_at: float | None = None  # monotonic seconds; None: there is no open question
    said: str = _NOT_REACHED
    has_answered: bool = False  # what cannot be read is an answer, too
    refusal: str | None = None  # why there is no connection; it is asked again all the same

    @property
    def is_silent(self) -> bool:
        """Whether it was asked, and has neither answered nor broken the connection."""
        return self.said == _SILENT or (self.said == _NOT_REACHED and self.asked_at is not None)


class LeaderSearch:
    """One search after the other. The machine that owns it does the asking."""

    __slots__ = (
        "_attempt",
        "_backoff",
        "_candidates",
        "_fallback",
        "_fallback_at",
        "_first",
        "_hanging_after",
        "_random",
        "_round_at",
        "_suspects",
    )

    def __init__(self, *, random: Random, response_timeout: float, grace: float) -> None:
        self._random = random
        self._backoff = Backoff(cap=grace)
        self._hanging_after = _HANGING * response_timeout
        self._candidates: dict[str, _Candidate] = {}
        self._attempt = 0
        self._round_at = 0.0
        self._first: str | None = None
        self._suspects: frozenset[str] = frozenset()
        self._fallback: str | None = None
        self._fallback_at = 0.0

    def start(self, urls: Iterable[str], now: float, *, first: str | None = None, suspects: Iterable[str] = ()) -> None:
        """A new search. ``first`` was named as the leader: it is asked alone, the others from the second round on.

        ``suspects`` said that they lead and did not act like it: silent, or taking nothing. One of them is believed
        only when nobody else leads after a grace time.
        """
        self._candidates = {url: _Candidate() for url in urls}
        self._attempt = 0
        self._first = first if first in self._candidates else None
        self._round_at = now
        self._suspects = frozenset(suspects)
        self._fallback = None
        self._fallback_at = now + self._backoff.cap

    def next_deadline(self) -> float:
        """When :meth:`due` or :meth:`fallback` has something, in monotonic seconds."""
        return self._round_at if self._fallback is None else min(self._round_at, self._fallback_at)

    def due(self, now: float) -> list[str]:
        """The peers to ask now."""
        if now < self._round_at:
            return []
        self._round_at = now + self._backoff.delay(self._attempt, self._random)
        self._attempt += 1
        if self._first is not None:
            first, self._first = self._first, None
            return [first]
        return [url for url, candidate in self._candidates.items() if candidate.asked_at is None]

    def hanging(self, now: float) -> list[str]:
        """The peers whose connection should be given up."""
        return [
            u for u, c in self._candidates.items() if c.asked_at is not None and now - c.asked_at > self._hanging_after
        ]

    def asked(self, url: str, now: float) -> None:
        """The question is on its way."""
        self._candidates[url].asked_at = now

    def gave_up(self, url: str) -> None:
        """The peer said nothing for too long: its connection was given up, and the question with it."""
        self.lost(url, _SILENT)

    def lost(self, url: str, why: str = "refused or broke the connection", refusal: str | None = None) -> None:
        """The connection failed, and the question with it. ``refusal``: and for this reason there will be none."""
        candidate = self._candidates.get(url)
        if candidate is not None:
            candidate.said = why
            candidate.refusal = refusal
            candidate.asked_at = None

    def answered(self, url: str, reply: ConfigReply) -> str | None:
        """Take an answer; returns the URL of the leader if that settles it."""
        candidate = self._candidates.get(url)
        if candidate is None:
            return None
        candidate.asked_at = candidate.refusal = None
        candidate.has_answered = True
        candidate.said = f"says that {reply.leader_id or 'nobody'} leads"
        if not reply.is_leader:
            return None
        if url not in self._suspects:
            return url
        candidate.said = "says that it leads, but does not act like it"
        self._fallback = url
        return None

    def unreadable(self, url: str) -> None:
        """The answer made no sense."""
        candidate = self._candidates.get(url)
        if candidate is not None:
            candidate.asked_at = candidate.refusal = None
            candidate.has_answered = True
            candidate.said = "does not speak ØMQ Raft: is the port the right one?"

    def fallback(self, now: float) -> str | None:
        """The suspect after all, if its time has come."""
        return self._fallback if now >= self._fallback_at else None

    def also(self, urls: Iterable[str], now: float) -> None:
        """Peers that an answer named. New ones are asked at once."""
        for url in urls:
            if url not in self._candidates:
                self._candidates[url] = _Candidate()
                self._round_at = now

    @property
    def nobody_answered(self) -> bool:
        """Whether no peer has said anything, and none has refused the connection with a reason."""
        return not any(c.has_answered or c.refusal for c in self._candidates.values())

    @property
    def all_are_silent(self) -> bool:
        """Whether no peer has answered, though some took the question: so it is with another cluster's ident."""
        return self.nobody_answered and any(c.is_silent for c in self._candidates.values())

    def __str__(self) -> str:
        """What everybody said, for the error."""
        return "; ".join(
            f"{url} {c.refusal or (_SILENT if c.asked_at is not None else c.said)}"
            for url, c in self._candidates.items()
        )


class LeaderCheck:
    """Whether a peer leads in a later term than the present leader: then that one was voted out, and does not know.

    Terms do not lie: who leads in one had the votes of a majority, and no earlier leader has it any more (Raft §5.2).
    """

    __slots__ = ("_claims", "_leader", "_term")

    def __init__(self) -> None:
        self._leader = ""
        self._term: int | None = None
        self._claims: dict[str, int] = {}

    def start(self, leader: str) -> None:
        """All peers are asked for the state of their logs; the leader is one of them."""
        self._leader = leader
        self._term = None
        self._claims = {}

    def answered(self, url: str, reply: LogInfoReply) -> str | None:
        """Take an answer; returns the URL of the leader of the latest term, once it is known that it is another one."""
        if url == self._leader:
            self._term = reply.current_term if reply.is_leader else -1
        elif reply.is_leader:
            self._claims[url] = reply.current_term
        if self._term is None or not self._claims:
            return None
        latest = max(self._claims, key=lambda claimant: self._claims[claimant])
        return latest if self._claims[latest] > self._term else None
