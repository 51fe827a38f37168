"""The data plane.  Its border, every verb that crosses it, is written in ``__init__.pyi``."""

from ._plane import (
    Answer,
    Channel,
    Connection,
    Consumer,
    Core,
    Message,
    Queue,
    Routes,
    Tally,
    check_of_entry,
    crc32c,
    crc32c_by_table,
    layout,
    scan_segment,
)

__all__ = [
    "Answer", "Channel", "Connection", "Consumer", "Core", "Message", "Queue", "Routes", "Tally",
    "check_of_entry", "crc32c", "crc32c_by_table", "layout", "scan_segment",
]
