"""The recent history exchange: a fanout that gives its last messages to each newly bound destination.

The exchange keeps the last ``x-recent-history-length`` messages in memory (20 without the argument), but no message
that has the header ``x-recent-history-no-store: true`` (RabbitMQ).  One exchange keeps at most ``HISTORY_OCTETS_MAX``
octets, and all together ``HISTORIES_OCTETS_MAX``: beyond that, an exchange that gets a message forgets its own oldest
one.  The messages end with the broker.  Before vhost/routing binds a destination, it delivers these messages to it.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from brokerd.errors import SyntaxError_
from brokerd.exchanges.fanout import FanoutExchange

if TYPE_CHECKING:
    from brokerd.plane import Message

HISTORY_LENGTH = 20
HISTORY_OCTETS_MAX = 64 << 20
HISTORIES_OCTETS_MAX = 256 << 20  # of this process
MESSAGE_OCTETS = 200  # what a message takes beside its properties and body
NO_STORE = "x-recent-history-no-store"

_HEADER_START = b"\0\x3c" + bytes(10)  # a content header up to its properties: class basic, weight 0, body size 0


class RecentHistoryExchange(FanoutExchange):
    """RabbitMQ's x-recent-history."""

    __slots__ = ("_followers", "_history", "_octets")

    type: ClassVar[str] = "x-recent-history"
    has_history: ClassVar[bool] = True
    octets_in_all: ClassVar[int] = 0

    def __init__(self, name: str, **properties: Any) -> None:
        self._octets = 0
        super().__init__(name, **properties)
        self._history: deque[Message] = deque()  # oldest first
        self._followers: list[deque[Message]] = []

    def __del__(self) -> None:
        RecentHistoryExchange.octets_in_all -= self._octets

    def remember(self, message: "Message") -> None:
        for follower in self._followers:
            follower.append(message)
        if NO_STORE.encode() in message.properties and _is_not_to_be_stored(message.properties):
            return
        self._history.append(message)
        self._count(_octets(message))
        length = self.arguments.get("x-recent-history-length", HISTORY_LENGTH)
        while len(self._history) > length or self._octets > HISTORY_OCTETS_MAX or self._is_too_much_in_all:
            self._count(-_octets(self._history.popleft()))

    def _count(self, octets: int) -> None:
        self._octets += octets
        RecentHistoryExchange.octets_in_all += octets

    @property
    def _is_too_much_in_all(self) -> bool:
        """Whether this exchange must forget a message because all together keep too many: one that keeps some does."""
        return self.octets_in_all > HISTORIES_OCTETS_MAX and bool(self._history)

    def follow(self) -> "deque[Message]":
        messages = self._history.copy()
        self._followers.append(messages)
        return messages

    def unfollow(self, messages: "deque[Message]") -> None:
        self._followers = [follower for follower in self._followers if follower is not messages]


def _octets(message: "Message") -> int:
    return MESSAGE_OCTETS + len(message.properties) + len(message.body)


def _is_not_to_be_stored(properties: bytes) -> bool:
    from brokerd.wire.properties import decode_header  # Few messages have this header.

    try:
        _, decoded = decode_header(_HEADER_START + properties)
    except SyntaxError_:  # The queues already have the message as it is: it is too late to refuse it.
        return False
    return (decoded.headers or {}).get(NO_STORE) is True
