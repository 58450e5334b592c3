"""``make rehearse``: ten incidents on three servers, and the commands of docs/operations/runbook.md that mend them.

The incidents say what happens and what must be seen; the commands, and the texts by which somebody finds their part of
the page, are read from the page, so it cannot say something else than what is rehearsed.
"""
