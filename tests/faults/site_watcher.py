"""A program that prints what a client of a site sees, and when: ``URL get|set [CLIENTS]``.

Each line has the moment by the clock that all programs of the machine share, and ``answer``, ``key`` or the states of
the site's peers. With ``CLIENTS`` so many others have asked the site something before, and are idle.
"""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import ExitStack

from statestore_client import RequestTimeoutError
from statestore_client.kvstore import SiteClient

_PAUSE_S = 0.02


def _say(what: str) -> None:
    sys.stdout.write(f"{time.monotonic()} {what}\n")
    sys.stdout.flush()


def _run(url: str, does: str, clients: int) -> None:
    with ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(SiteClient(url)).get("tick")
        client = stack.enter_context(SiteClient(url))
        stack.enter_context(client.subscribe(callback=lambda change: _say(f"key {change.key}")))
        stack.enter_context(client.follow_peers(lambda peers: _say(str({n: p.state for n, p in peers.items()}))))
        for number in itertools.count():
            try:
                client.set("tick", str(number)) if does == "set" else client.get("tick")
                _say("answer")
            except RequestTimeoutError:
                pass
            time.sleep(_PAUSE_S)


_run(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
