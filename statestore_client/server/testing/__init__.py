"""The server inside another program, and what tests do with it: look, wait, move its time, make it fail."""
