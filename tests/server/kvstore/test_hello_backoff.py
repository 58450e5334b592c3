"""What trouble costs: a site that is refused, or not answered, says less than one whose peers are there."""

from __future__ import annotations

from itertools import pairwise

import pytest
from site_pair import AREA, OneSite

_WINDOW_S = 60
_STEP_S = 0.05


def _bytes_of_a_minute(one: OneSite, other: OneSite, *, is_heard: bool = True) -> int:
    """What both sides say in a minute, the first hello included, if the one dials the other."""
    one.site.members.dial("out", one.now)
    sides = {"out": (one, other, "in"), "in": (other, one, "out")}
    total = 0
    for _ in range(round(_WINDOW_S / _STEP_S)):
        for link, (sender, receiver, at) in sides.items():
            sender.now += _STEP_S
            sender.site.tick(sender.now)
            output, sender.site.output = sender.site.output, []
            for to, data in output:
                assert to == link
                total += len(data)
                if is_heard:
                    receiver.site.receive(at, data, receiver.now)
    return total


def _idle() -> int:
    """The same of two empty sites that are peers; nothing but heartbeats after their hellos and a digest."""
    one, other = OneSite("bonn"), OneSite("rome", 7)
    total = _bytes_of_a_minute(one, other)
    assert "rome" in one.replica.peers
    return total


@pytest.mark.parametrize(
    ("other", "is_heard"),
    [
        pytest.param(OneSite("bonn", 7), True, id="own name"),
        pytest.param(OneSite("rome", 7, areas=("elsewhere",)), True, id="no common area"),
        pytest.param(OneSite("rome", 7), False, id="not answered"),
    ],
)
def test_a_site_that_does_not_get_in_costs_at_most_twice_what_a_peer_costs(other: OneSite, is_heard: bool) -> None:
    """A minute of hellos and refusals, beside a minute of heartbeats."""
    assert 0 < _bytes_of_a_minute(OneSite("bonn"), other, is_heard=is_heard) <= 2 * _idle()


def test_hellos_become_rare_and_are_quick_again_after_a_good_one() -> None:
    """Three follow after a second each, the later ones after 2, 4 and 8 s at most; an answer begins anew."""
    one = OneSite("bonn")
    one.site.members.dial("out", one.now)
    begun = one.now
    said = [0.0 for _ in one.said("out")]
    while one.now < begun + 40:
        said += [one.now - begun for _ in one.wait(0.01, "out")]
    waits = [after - before for before, after in pairwise(said)]
    assert waits[:3] == pytest.approx([1, 1, 1], abs=0.02)
    assert all(full * 0.8 - 0.02 <= wait <= full + 0.02 for full, wait in zip((2, 4, 8, 8), waits[3:], strict=False))
    assert max(waits[5:]) - min(waits[5:]) > 0.05, "sites that lost a peer together would come back together"
    one.hear_hello("rome", 7, "out", is_reply=True)
    assert AREA in one.site.replicas
    assert one.site._links.get("out").hellos == 0
