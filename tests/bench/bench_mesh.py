"""A thousand simulated sites, of which each message is lost with 5 %: how soon an update is everywhere, and its cost.

    python tests/bench/bench_mesh.py [--quick] [--updates 40]

The sites are the real ones without their sockets, in one process with a clock that jumps: two rings in random order,
so four connections each; a message takes 1 to 51 ms. Some keep a key alive that lives for a minute. Beside it is what
Serf's convergence simulator says for the same number of nodes and the same loss, with Serf's own settings for a local
network. That one is a formula: it knows rounds of 200 ms and no delay of the network, and says how many of the nodes
are reached in the mean, not when the last one is.
There each node may talk to each other one; here a site talks to its four peers.
"""

from __future__ import annotations

import math
import sys
from itertools import chain
from pathlib import Path
from typing import Final

from measure import Options, Report, percentile

sys.path.append(str(Path(__file__).parents[1] / "server" / "kvstore" / "simulation"))

from sites_wide_mesh import WideMesh

_SITES: Final = 1_000
_LOSS: Final = 0.05
_VALUE: Final = b"x" * 100
_OWN_KEYS: Final = 5

#: Serf's settings for a local network: seconds of a round, nodes told in each, bytes of a packet at most.
_SERF_ROUND_S: Final = 0.2
_SERF_FANOUT: Final = 3
_SERF_PACKET: Final = 1_400


def serf_s(share: float, nodes: int, loss: float, fanout: int = _SERF_FANOUT) -> float:
    """Seconds until that share of the nodes is reached.

    A logistic curve: after x rounds n / (1 + (n + 1) e^(-c x)) of n nodes, with c = fanout (1 - loss) / 2.

    Source: Serf's documentation, "Convergence Simulator".
    """
    rounds = math.log((nodes + 1) * share / (1 - share)) / (fanout * (1 - loss) / 2)
    return rounds * _SERF_ROUND_S


def serf_bytes_per_s(fanout: int = _SERF_FANOUT) -> float:
    """What a node sends and receives at most, while there is something to tell. Source: the same."""
    return _SERF_PACKET * fanout / _SERF_ROUND_S * 2


def main() -> int:
    options = Options.parse(__doc__, updates=(int, 40, "updates, one after another"))
    report = Report(options)
    sites = options.scaled(_SITES)
    mesh = WideMesh(sites, _LOSS, own_keys=_OWN_KEYS)
    spreads = [mesh.update(_VALUE) for _ in range(options.scaled(options.number("updates")))]
    missing = sum(sites - 1 - len(spread.reached_s) for spread in spreads)
    each = list(chain.from_iterable(spread.reached_s for spread in spreads))
    last = [spread.reached_s[-1] for spread in spreads]
    messages = max(spread.flood_messages for spread in spreads) / mesh.edges
    flood_bytes = percentile([spread.flood_bytes for spread in spreads], 50)
    print(
        f"{sites:,} sites, {mesh.edges:,} connections, {_LOSS:.0%} lost, {len(spreads)} updates of {len(_VALUE)} bytes"
    )
    report.bar("sites that an update has not reached", missing, 0, unit="", at_most=True)
    report.bar(f"keys kept alive that expired anywhere, {_OWN_KEYS} at each", mesh.expired, 0, unit="", at_most=True)
    report.bar("keys kept alive that are not there in the end", mesh.lacking, 0, unit="", at_most=True)
    for share in (0.5, 0.99):
        reached = percentile(each, 100 * share)
        report.bar(
            f"s until {share:.0%} of the sites have it; Serf's",
            reached,
            serf_s(share, sites, _LOSS),
            unit="s",
            at_most=True,
        )
    four = [f"{share:.0%} {serf_s(share, sites, _LOSS, 4):.2f} s" for share in (0.5, 0.99)]
    print(f"Serf's if each node told four in a round, as many as a site has peers: {', '.join(four)}")
    print(f"s until the last site has it: p50 {percentile(last, 50):.2f}, p99 {percentile(last, 99):.2f}")
    report.bar("messages of an update for each connection, most", messages, 2, unit="", at_most=True)
    print(f"bytes of an update: {flood_bytes:,.0f}, {flood_bytes / sites:,.0f} for each site")
    # Serf counts both directions.
    sent = 2 * sum(spread.all_bytes for spread in spreads) / sum(spread.seconds for spread in spreads) / sites
    report.bar(
        "bytes/s of a site, heartbeats and repairs too; Serf's", sent, serf_bytes_per_s(), unit="B/s", at_most=True
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
