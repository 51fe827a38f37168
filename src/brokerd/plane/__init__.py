"""The data plane.  Its border, every verb that crosses it, is written in ``__init__.pyi``.

With BROKERD_ASSERTS in the environment it is the build for tests, in which assertions are compiled.
"""

from importlib import import_module
from os import environ

__all__ = [
    "RULES", "Answer", "Channel", "Connection", "Consumer", "Core", "Keys", "Letters", "Message", "Queue", "Routes",
    "Tally", "Window", "asserted", "check_of_entry", "crc32c", "crc32c_by_table", "keys_in_segment", "layout",
    "scan_segment",
]

asserted = bool(environ.get("BROKERD_ASSERTS"))
_compiled = vars(import_module("brokerd.plane._asserted" if asserted else "brokerd.plane._plane"))
globals().update({name: _compiled[name] for name in __all__ if name != "asserted"})
