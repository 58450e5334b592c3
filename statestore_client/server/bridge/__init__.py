"""The bridge between the state store and the KvStore: chosen keys cross to other sites, read-only there. Pure."""
