"""``python pipeline_server.py PORT DIRECTORY``: a durable state store that says it is full when it is told so.

Lines of standard input are ``full`` and ``ok``; each is answered with ``done``.
"""

from __future__ import annotations

import sys

from statestore_client.server import EmbeddedServer


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(port: str, directory: str) -> None:
    with EmbeddedServer(int(port), data=directory, faults=True, record_messages=0) as server:
        say("ready")
        for line in sys.stdin:
            if line.strip() == "full":
                server.faults.refuse("PUBLISH", 0x97)
            else:
                server.faults.clear()
            say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
