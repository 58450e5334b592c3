"""Access rules: who may do what, and what a pattern covers. Pure."""
