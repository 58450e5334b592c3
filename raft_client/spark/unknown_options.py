"""What is said of options that do not exist: what one is called here, or why there is none.

People come from the other kind of read, and from Spark's source for Kafka.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from raft_client.errors import SettingsError

#: A name in lower case -> what is meant; of several, the one that this kind of read has.
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "url": ("seeds",),
    "urls": ("seeds",),
    "peers": ("seeds",),
    "kafka.bootstrap.servers": ("seeds",),
    "after": ("startingIndex",),
    "startingindex": ("after",),
    "startingoffsets": ("startingIndex", "after"),
    "startingoffset": ("startingIndex", "after"),
    "startingtimestamp": ("startingTime",),
    "startingoffsetsbytimestamp": ("startingTime",),
    "until": ("endingIndex",),
    "endingindex": ("until",),
    "endingoffsets": ("endingIndex", "until"),
    "endingoffset": ("endingIndex", "until"),
    "partitions": ("minPartitions",),
    "minpartitions": ("partitions",),
    "failondataloss": ("snapshot",),
}
_NO_TOPICS: Final = "a log has no topics, leave it out"
_NO_GROUPS: Final = "there are no consumer groups: each query reads the whole log, its checkpoint says how far it is"
#: A name in lower case -> why there is nothing like it.
_NOTHING: Final[Mapping[str, str]] = {
    "subscribe": _NO_TOPICS,
    "subscribepattern": _NO_TOPICS,
    "assign": _NO_TOPICS,
    "topic": _NO_TOPICS,
    "groupidprefix": _NO_GROUPS,
    "kafka.group.id": _NO_GROUPS,
    "path": "a log has no paths or tables, and seeds says where it is",
    "includeheaders": "an entry has no headers",
    "minoffsetspertrigger": "how often there is a micro-batch is up to the trigger",
    "maxtriggerdelay": "how often there is a micro-batch is up to the trigger",
}


def unknown_options(lowered: Iterable[str], known: Mapping[str, str]) -> SettingsError:
    """The error for options, all in one; ``known`` has those that exist, by their names in lower case."""
    sentences = [f"unknown option {name}{_hint(name, known)}" for name in sorted(lowered)]
    names = ", ".join(sorted(set(known.values()), key=str.lower))
    return SettingsError(f"{' '.join(sentences)} Known options: {names}")


def _hint(lowered: str, known: Mapping[str, str]) -> str:
    for name in _INSTEAD.get(lowered, ()):
        if name.lower() in known:
            return f"; did you mean {name}?"
    if lowered in _NOTHING:
        return f": {_NOTHING[lowered]}."
    if lowered.startswith("kafka."):
        return ": that is a setting of Kafka's client."
    near = difflib.get_close_matches(lowered, known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else "."
