"""The state store as an application of the broker. Pure."""
