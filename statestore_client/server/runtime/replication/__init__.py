"""A server that shares a log with others: it follows the active one, takes its place, and is replaced."""
