"""The KvStore: state that spreads between sites. Merging, times to live, own keys, subscribers. Pure."""
