"""What people and programs see of a running server: the log, and figures for Prometheus."""
