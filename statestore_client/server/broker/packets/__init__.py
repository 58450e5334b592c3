"""What the broker does with the packets of clients: one file for each kind of packet of the standard."""
