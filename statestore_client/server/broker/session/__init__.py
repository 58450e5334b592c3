"""Sessions: what is in flight, the queue behind it, wills, topic aliases; how they begin and end."""
