"""The core of the replicated server: what is in the log, which of it counts, and which server may speak."""
