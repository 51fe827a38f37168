def monotonic_ns() -> int: ...

class Histogram:
    count: int
    max: int
    def record(self, ns: int) -> None: ...
    def merge(self, other: Histogram) -> None: ...
    def since(self, earlier: Histogram) -> Histogram: ...
    def counts(self) -> list[tuple[int, int]]: ...
    def quantile(self, share: float) -> int: ...

class Control:
    stop: bool
    start_ns: int
    until_ns: int
    measure_ns: int
    gap_ns: float
    producers: int
    limited: bool
    budget: int

class Link:
    published: int
    confirmed: int
    nacked: int
    returned: int
    received: int
    octets: int
    redelivered: int
    misordered: int
    foreign: int
    last_ns: int
    blocked: bool
    syncing: bool
    finished: bool
    torn: bool
    latency: Histogram | None
    from_write: Histogram | None
    def __init__(self, fd: int, pending: bytes, control: Control, frame_max: int) -> None: ...
    @property
    def error(self) -> str: ...
    @property
    def waits(self) -> Histogram | None: ...
    def seen(self) -> list[tuple[int, int, int, int, int]]: ...
    def load(
        self,
        messages: list[tuple[bytes, int]],
        producer: int,
        limit: int = 0,
        window: int = 0,
        mark_number: bool = False,
        mark_time: bool = False,
        time_confirms: bool = False,
    ) -> None: ...
    def publish(self, sync: bytes, replies: int) -> None: ...
    def expect(
        self, ack_every: int, queues: int, producers: int, verify: bool = False, measure: bool = False
    ) -> None: ...
    def consume(self, sync: bytes) -> None: ...
