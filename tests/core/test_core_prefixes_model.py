"""Random changes, deliveries, cuts and time against a watch on a prefix, with a store that is as simple as can be."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from machine_driver import MachineDriver
from watch_driver import DELETED, OK, ts, value, version, was_set

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.core.prefixes import PrefixTable
from statestore_client.wire.messages import OutgoingMessage

WINDOW: Final = 3
RESCAN_S: Final = 10.0
KEYS: Final = [b"a/%d" % n for n in range(4)]
PAGE_KEYS: Final = 2


class ModelStore:
    """Values, who is notified, and every change that each key ever had."""

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self.history: dict[bytes, list[int | None]] = defaultdict(list)  # versions; a deletion's is negative
        self.observed: set[bytes] = set()
        self.notifications: deque[tuple[bytes, bytes, int]] = deque()
        self.versions = 0

    def change(self, key: bytes, text: bytes | None) -> None:
        if text is None and key not in self.values:
            return
        self.versions += 1
        if text is None:
            del self.values[key]
        else:
            self.values[key] = text, self.versions
        self.history[key].append(self.versions)
        if key in self.observed:
            self.notifications.append((key, DELETED if text is None else was_set(text), self.versions))

    def execute(self, payload: bytes) -> tuple[bytes, tuple[str, str] | None]:
        """The answer to a command (state store protocol, "RESP3"; state store facts, 1.6), and its version."""
        words = payload.split(b"\r\n")[2::2]
        match words:
            case [b"KEYNOTIFY", key]:
                self.observed.add(key)
                return OK, None
            case [b"KEYNOTIFY", key, b"STOP"]:
                self.observed.discard(key)
                return OK, None
            case [b"GET", key]:
                found = self.values.get(key)
                return (b"$-1\r\n", None) if found is None else (value(found[0]), ts(found[1]))
            case [b"SCAN", b"a/*", *token]:
                keys = sorted(key for key in self.values if key.startswith(b"a/") and not (token and key <= token[0]))
                listed = keys[:PAGE_KEYS]
                array = b"*%d\r\n" % len(listed) + b"".join(b"$%d\r\n%s\r\n" % (len(k), k) for k in listed)
                if len(keys) <= PAGE_KEYS:
                    return b"*1\r\n" + array, None
                return b"*2\r\n" + array + b"$%d\r\n%s\r\n" % (len(listed[-1]), listed[-1]), None
        raise AssertionError(payload)


class PrefixModel(RuleBasedStateMachine):
    """Answers and notifications travel in order each, and in no order between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = MachineDriver(max_in_flight=WINDOW, retry_first_connect=True, request_timeout=1e6)
        self.store = ModelStore()
        self.answers: deque[tuple[OutgoingMessage, bytes, tuple[str, str] | None]] = deque()
        self.there: dict[bytes, bytes] | None = None  # when the watch stood: who enters it may read them then
        self.lost = 0  # notifications that were, by a broker that should not

    @initialize(keys=st.sets(st.sampled_from(KEYS)), initial=st.booleans())
    def begin(self, keys: set[bytes], initial: bool) -> None:
        for key in sorted(keys):
            self.store.change(key, b"%d" % self.store.versions)
        self.initial = initial
        self.driver.ready()
        self.seen = self.driver.watch_prefix(b"a/", "w", initial=initial, rescan=RESCAN_S)
        self.driver.suback()

    @rule(key=st.sampled_from([*KEYS, b"b"]), is_set=st.booleans())
    def change(self, key: bytes, is_set: bool) -> None:
        self.store.change(key, b"%d" % self.store.versions if is_set else None)

    @rule()
    def execute(self) -> None:
        """The server takes in the oldest request."""
        if self.driver.on_the_wire:
            publish = self.driver.on_the_wire[0]
            payload, stamp = self.store.execute(publish.message.payload)
            self.answers.append((publish.message, payload, stamp))
            self.driver.puback(publish)

    @rule()
    def answer(self) -> None:
        if self.answers:
            message, payload, stamp = self.answers.popleft()
            self.driver.reply(message, payload, *([stamp] if stamp else []))
            if self.there is None and self.driver.outcomes["w"]:
                # A key that came after the listing is new: if it goes before the next one, nobody tells.
                self.there = {key: text for key, text in self._values().items() if key in self.store.observed}

    def _values(self) -> dict[bytes, bytes]:
        return {key: found[0] for key, found in self.store.values.items() if key.startswith(b"a/")}

    @rule()
    def notify(self) -> None:
        if self.store.notifications:
            key, payload, n = self.store.notifications.popleft()
            self.driver.notify(key, payload, str(version(n)))

    @rule()
    def lose_a_notification(self) -> None:
        if self.store.notifications:
            self.store.notifications.popleft()
            self.lost += 1

    @rule()
    def rescan(self) -> None:
        self.driver.after(RESCAN_S)

    @rule(session_present=st.booleans())
    def cut(self, session_present: bool) -> None:
        """The connection breaks; with its session, what was on the way arrives later."""
        self.store.observed.clear()
        if not session_present:
            self.answers.clear()
            self.store.notifications.clear()
        self.driver.lose()
        self.driver.reconnect(session_present=session_present)

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def versions_ascend_and_gaps_are_told(self) -> None:
        """An event without ``missed`` is of the change that follows the one before it."""
        last: dict[bytes, int | None] = {}
        for event in self.seen:
            assert isinstance(event, WatchEvent)
            if event.version is None:  # a deletion that was found by reading
                assert event.missed
                last[event.key] = None
                continue
            n = event.version.wall_ms - version(0).wall_ms
            place = self.store.history[event.key].index(n)
            before = last.get(event.key)
            if before is not None:
                assert n > before
            if not event.missed and not self.lost and before is not None:
                assert self.store.history[event.key][place - 1] == before
            last[event.key] = n

    @invariant()
    def no_more_than_the_window_is_under_way(self) -> None:
        assert self.driver.machine.request_table.pending <= WINDOW + 1  # and a page

    def teardown(self) -> None:
        """Once everything has arrived, and a listing after it, reader and store agree; a second one tidies up."""
        for _ in range(3):
            self._settle()
            self.driver.after(RESCAN_S)
        self._settle()
        assert self.driver.outcome("w") is None
        assert self.there is not None
        known = {} if self.initial else self.there
        for event in self.seen:
            assert isinstance(event, WatchEvent)
            if event.kind is EventKind.SET:
                assert event.value is not None
                known[event.key] = event.value
            else:
                known.pop(event.key, None)
        there = self._values()
        assert known.keys() == there.keys()
        if not self.lost:
            assert known == there
        assert self.store.observed == there.keys()

    def _settle(self) -> None:
        while self.driver.on_the_wire or self.answers or self.store.notifications:
            self.execute()
            self.notify()
            self.answer()


PrefixModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPrefixModel = PrefixModel.TestCase


def test_a_read_that_finds_a_deletion_may_miss_changes() -> None:
    """A key that is set and deleted while it is read for the first time: the reader is told of the deletion before it
    is notified, without a version, so there may be changes that it was not told of.
    """
    model = PrefixModel()
    model.begin(keys={b"a/0", b"a/3"}, initial=False)
    for _ in range(3):  # the listing, and KEYNOTIFY of both keys
        model.execute()
        model.answer()
    model.execute()
    model.change(key=b"a/3", is_set=True)
    model.answer()
    model.notify()
    model.change(key=b"a/3", is_set=False)
    for _ in range(2):  # GET is sent again, as it was overtaken
        model.execute()
        model.answer()
    assert [(event.kind, event.missed) for event in model.seen] == [(EventKind.SET, False), (EventKind.DELETE, True)]
    model.teardown()


@pytest.mark.parametrize(
    ("of", "name", "mutant"),
    [
        (PrefixTable, "_review", lambda *_: None),
        (PrefixTable, "due", lambda *_: []),
    ],
    ids=["listings are not looked through", "listed once"],
)
def test_the_model_notices_what_is_wrong(monkeypatch: pytest.MonkeyPatch, of: type, name: str, mutant: Any) -> None:
    """The model fails each watch that is broken on purpose."""
    monkeypatch.setattr(of, name, mutant)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            PrefixModel,
            settings=settings(
                PrefixModel.TestCase.settings,
                max_examples=500,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                derandomize=True,
                database=None,
            ),
        )
