"""State machines: what a peer does with the entries of its log. Pure: no clock, no network, no threads."""
