"""A page that shows what a running server is doing."""
