"""Definitions of links: the values of the parameters ``shovel`` and ``federation-upstream`` as types.

Keys and defaults are those of RabbitMQ 3.13 and LavinMQ 2.9.  ``from_value`` reads a value that the broker has checked
when it was set; of a key that has two names (``src-prefetch-count`` and ``prefetch-count``) the longer wins.  Keys that
it does not know are left out.  Knows nothing of vhosts, sockets and messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

SHOVEL, UPSTREAM, UPSTREAM_SET = "shovel", "federation-upstream", "federation-upstream-set"
COMPONENTS = (SHOVEL, UPSTREAM, UPSTREAM_SET)  # of parameters
PAUSED = "paused-shovel"
"""The component of a parameter, value true, that stands beside a shovel of the same name which is paused.  It is on the
disk as the shovel is, so that a pause survives a restart."""
ALL = "all"  # the set that is always there: every upstream of the vhost

ON_CONFIRM, ON_PUBLISH, NO_ACK = "on-confirm", "on-publish", "no-ack"
ACK_MODES = (ON_CONFIRM, ON_PUBLISH, NO_ACK)
NEVER, QUEUE_LENGTH = "never", "queue-length"  # values of src-delete-after beside a number
PREFETCH = 1000
RETRY_FOREVER = -1
HTTP_SCHEMES = ("http://", "https://")


def uris(value: Any) -> tuple[str, ...]:
    """The addresses in ``src-uri``, ``dest-uri`` or ``uri``: a text or a list of texts."""
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, slots=True)
class ShovelDefinition:
    """A shovel.  A queue and an exchange that are both None on one side: the message's own routing (destination), or a
    parameter that should have been refused (source)."""

    src_uri: tuple[str, ...]
    dest_uri: tuple[str, ...]
    src_protocol: str = "amqp091"  # or local
    dest_protocol: str = "amqp091"  # or local
    src_queue: str | None = None
    src_queue_args: Mapping[str, Any] = field(default_factory=dict)  # of the queue that the shovel declares
    src_exchange: str | None = None
    src_exchange_key: str = ""
    src_prefetch_count: int = PREFETCH
    src_delete_after: str | int = NEVER  # never, queue-length, or a number of messages
    src_consumer_args: Mapping[str, Any] = field(default_factory=dict)
    src_predeclared: bool = False
    dest_queue: str | None = None
    dest_queue_args: Mapping[str, Any] = field(default_factory=dict)
    dest_exchange: str | None = None
    dest_exchange_key: str | None = None  # None: the message's own
    dest_publish_properties: Mapping[str, Any] = field(default_factory=dict)
    dest_add_forward_headers: bool = False
    dest_add_timestamp_header: bool = False
    dest_predeclared: bool = False
    ack_mode: str = ON_CONFIRM
    reconnect_delay: float = 5.0  # seconds; 0: a link that fails is not tried again
    # brokerd's own
    dest_retries: int = RETRY_FOREVER  # how often a refused message is tried again before it is rejected at its source
    dedup: bool = False  # the destination drops what it has already had of this shovel

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """Read a parameter's value.  Raises KeyError if an address is missing."""
        given = _given(cls, value, _SHOVEL_OTHER_NAMES)
        return cls(src_uri=uris(given.pop("src_uri")), dest_uri=uris(given.pop("dest_uri")), **given)

    @property
    def is_http(self) -> bool:
        """Whether the destination is a web server."""
        return self.dest_uri[0].lower().startswith(HTTP_SCHEMES)


@dataclass(frozen=True, slots=True)
class UpstreamDefinition:
    """An upstream: another broker with exchanges or queues that are federated here."""

    uri: tuple[str, ...]
    exchange: str | None = None  # None: the name of the federated exchange
    queue: str | None = None  # None: the name of the federated queue
    prefetch_count: int = PREFETCH
    reconnect_delay: float = 5.0  # seconds
    ack_mode: str = ON_CONFIRM
    max_hops: int = 1
    expires: int | None = None  # milliseconds that the upstream's queue outlives its link
    message_ttl: int | None = None  # milliseconds, in the upstream's queue
    queue_type: str = "classic"  # of the upstream's queue
    consumer_tag: str | None = None  # None: federation-link-NAME
    trust_user_id: bool = False
    bind_nowait: bool = False
    resource_cleanup_mode: str = "default"  # or never: the upstream's queue stays when the link goes
    channel_use_mode: str = "multiple"  # or single; one channel is enough here
    ha_policy: str | None = None  # has no effect

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Self:
        """Read a parameter's value.  Raises KeyError if the address is missing."""
        given = _given(cls, value, {})
        return cls(uri=uris(given.pop("uri")), **given)

    def overridden(self, entry: Mapping[str, Any]) -> Self:
        """As an entry of an upstream set has it: its keys beside ``upstream`` win."""
        given = _given(type(self), entry, {})
        if "uri" in given:
            given["uri"] = uris(given["uri"])
        return replace(self, **given)


_SHOVEL_OTHER_NAMES = {
    "prefetch-count": "src_prefetch_count",
    "delete-after": "src_delete_after",
    "add-forward-headers": "dest_add_forward_headers",
    "add-timestamp-header": "dest_add_timestamp_header",
    "publish-properties": "dest_publish_properties",
}


def _given(kind: Any, value: Mapping[str, Any], other_names: Mapping[str, str]) -> dict[str, Any]:
    """The fields that the value has, by attribute."""
    found = {attribute: value[name] for name, attribute in other_names.items() if name in value}
    for each in fields(kind):
        name = each.name.replace("_", "-")
        if name in value:
            found[each.name] = value[name]
    return found
