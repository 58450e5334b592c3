"""What sites and clients of the KvStore say to each other: values, and their bytes. Pure."""
