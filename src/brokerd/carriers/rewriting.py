"""How a shovel changes the properties of messages on their way.

    x-shovelled              an array, a table in front for each shovel that the message has passed
    x-shovelled-timestamp    when, in seconds since 1970

Both are RabbitMQ's, and are written if the shovel says so.  A relay writes two more by itself, brokerd's own:

    x-shovel-redelivered     true: the destination may have this message already
    x-shovel-id              which message of which shovel it is; the same when it comes again

Knows nothing of connections.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from brokerd.client.address import shown
from brokerd.wire.properties import Properties, decode_header, encode_header
from brokerd.wire.values import Int64, Timestamp

if TYPE_CHECKING:
    from brokerd.client._relay import Rewrite
    from brokerd.links.definition import ShovelDefinition

REDELIVERED = "x-shovel-redelivered"
ID = "x-shovel-id"
NUMBERS = "x-message-seq"  # an argument of consumers, and the header by which they then get a message's number
TIME = "x-message-ns"
Change = Callable[[Properties], None]


def changing(*changes: Change) -> "Rewrite":
    """A relay's function that makes these changes, in this order."""

    def rewrite(exchange: bytes, key: bytes, header: bytes, redelivered: bool) -> tuple[bytes, bytes, bytes]:
        size, properties = decode_header(header)
        for change in changes:
            change(properties)
        return exchange, key, encode_header(size, properties)

    return rewrite


def add_id(ids: str, on_none: Callable[[], object]) -> Change:
    """Say which message it is, by the number and the time that its source gives it, and take these two away.

    Number and time together never come twice in queues of one name, also after a power cut or when the queue was made
    again.  A source that gives none leaves the message without an id: one that a shovel before this one gave it goes.
    ``ids``: what the id begins with.  ``on_none()`` is called for each message without an id.  A relay does the same by
    itself; this is for messages that pass through none.
    """

    def change(properties: Properties) -> None:
        headers = dict(properties.headers or {})
        number, when = headers.pop(NUMBERS, None), headers.pop(TIME, None)
        headers.pop(ID, None)
        if type(number) is Int64 and type(when) is Int64 and number >= 0 and when >= 0:
            headers[ID] = f"{ids} {number} {when}"
        else:
            on_none()
        properties.headers = headers or None

    return change


def override(values: Mapping[str, Any]) -> Change:
    """Give messages these properties, by RabbitMQ's names, such as content_type."""
    found = dict(values)
    if "timestamp" in found:
        found["timestamp"] = Timestamp(found["timestamp"])

    def change(properties: Properties) -> None:
        for name, value in found.items():
            setattr(properties, name, value)

    return change


def add_forward_headers(
    shovel: "ShovelDefinition", name: str, vhost: str, broker: str, uris: tuple[str, str]
) -> Change:  # fmt: skip
    """Put a table about this shovel in front of ``x-shovelled``.  ``uris``: of source and destination."""
    table: dict[str, Any] = {
        "shovelled-by": broker, "shovel-type": "dynamic", "shovel-name": name, "shovel-vhost": vhost,
        "src-uri": shown(uris[0]), "dest-uri": shown(uris[1]),
    }  # fmt: skip
    ends = {"src-queue": shovel.src_queue, "src-exchange": shovel.src_exchange, "dest-queue": shovel.dest_queue,
            "dest-exchange": shovel.dest_exchange, "dest-exchange-key": shovel.dest_exchange_key}  # fmt: skip
    table |= {end: value for end, value in ends.items() if value is not None}
    if shovel.src_exchange is not None:
        table["src-exchange-key"] = shovel.src_exchange_key

    def change(properties: Properties) -> None:
        headers = properties.headers or {}
        before = headers.get("x-shovelled")
        properties.headers = {**headers, "x-shovelled": [table, *(before if isinstance(before, list) else ())]}

    return change


def add_timestamp_header(properties: Properties) -> None:
    """Say when the message passed."""
    properties.headers = {**(properties.headers or {}), "x-shovelled-timestamp": Int64(int(time.time()))}
