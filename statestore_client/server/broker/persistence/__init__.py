"""What of the broker survives the process: written down, read again, and nothing told before it is on the disk."""
