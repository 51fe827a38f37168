"""The disk off the message's way: layouts, locks, recovery, compaction, group commit, the definitions log."""
