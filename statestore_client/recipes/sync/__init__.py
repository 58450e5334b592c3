"""With threads."""
