from collections.abc import Callable
from typing import Any

Rewrite = Callable[[bytes, bytes, bytes, bool], tuple[bytes, bytes, bytes] | None]

class StreamError(Exception): ...

class Frames:
    frame_max: int
    def __init__(self, on_frame: Callable[[int, int, bytes], Any], capacity: int = 262144) -> None: ...
    def agree(self, frame_max: int) -> None: ...
    def give(self, relay: Relay, source: bool) -> None: ...
    def room(self) -> memoryview: ...
    def rest(self) -> bytes: ...
    def fed(self, count: int) -> None: ...

class Relay:
    received: int
    confirmed: int
    in_flight: int
    refused: int
    retried: int
    rejected: int
    limit: int
    halted: bool
    careful: bool
    reason: str
    came_back: bool
    unnumbered: int
    overlong: int
    def __init__(
        self,
        mode: str,
        exchange: bytes | None,
        key: bytes | None,
        *,
        mandatory: bool = False,
        rewrite: Rewrite | None = None,
        marks: bool = False,
        ids: bytes | None = None,
        limit: int = -1,
        frame_max: int = 131072,
    ) -> None: ...
    @property
    def kept_octets(self) -> int: ...
    @property
    def unsettled(self) -> int: ...
    @property
    def tries(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def take(self) -> bytes: ...
    def retry(self) -> None: ...
    def give_up(self) -> None: ...
    def acks(self) -> bytes: ...
