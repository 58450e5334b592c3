"""What clients may make the broker hold or do, and what becomes of those who want more."""
