"""What keeps a peer's log on the disk: segments, their indexes, snapshots; :class:`.disk_log.DiskLog` is the door."""
