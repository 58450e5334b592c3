"""One peer of a PySyncObj cluster, in the virtual environment that has it: ``pysyncobj_peer.py JOURNAL SELF OTHER …``.

Orders come in, and answers go out, as lines of JSON: ``{"do": "leads"}`` asks whether it leads, and ``{"do": "append",
"count", "size", "in_flight"}`` appends from within the process, which is the only door that PySyncObj has.
"""

import json
import sys
import threading
import time

import pysyncobj


class Log(pysyncobj.SyncObj):
    """Keeps a count of what was applied."""

    def __init__(self, journal, own, others):
        conf = pysyncobj.SyncObjConf(appendEntriesUseBatch=False, journalFile=journal)
        super().__init__(own, others, conf)
        self.count = 0

    @pysyncobj.replicated
    def append(self, data):
        self.count += 1
        return self.count


def append(log, count, size, in_flight):
    """Seconds for ``count`` appends with so many in flight."""
    data = b"v" * size
    room = threading.Semaphore(in_flight)
    failures = []

    def done(_result, error):
        if error:
            failures.append(error)
        room.release()

    began = time.perf_counter()
    for _ in range(count):
        room.acquire()
        log.append(data, callback=done)
    for _ in range(in_flight):
        room.acquire()
    seconds = time.perf_counter() - began
    assert not failures, failures[:3]
    return seconds


def main():
    journal, own, *others = sys.argv[1:]
    log = Log(journal, own, others)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "leads":
            answer = log.isReady() and str(log._getLeader()) == own
        else:
            answer = append(log, order["count"], order["size"], order["in_flight"])
        print(json.dumps(answer), flush=True)


main()
