"""The state store as a client of another broker: who asks, who observes, and in which order what is said. Pure."""
