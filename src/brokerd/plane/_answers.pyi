"""The border of the data plane, for routing: where publishes and dead letters go.  ``__init__.pyi`` is the first page."""

from collections.abc import Callable
from typing import Any, Protocol

from brokerd.plane import Channel, Core
from brokerd.plane._keys import ExchangeWindow, Keys

class Tally:
    """Counters of one exchange."""
    published: int; routed: int

class Message:
    """A message as it is stored.  The properties are flags and list as on the wire."""
    def __init__(self, exchange: bytes, routing_key: bytes, properties: bytes, body: bytes) -> None: ...
    exchange: bytes; routing_key: bytes; properties: bytes; body: bytes

class Participant(Protocol):
    """A feature that takes part in a publish.  It is asked for its queues just before the message is stored, and told
    just after.  No other message comes between the two calls; a message that waits for room is asked for again."""
    @property
    def counts_as_routed(self) -> bool:
        """Whether this feature takes the message, so that the message is not returned even if no queue is left.  Asked after
        before_storing()."""
    @property
    def refuses(self) -> bool:
        """Whether the publisher is to be told that this feature has refused the message.  Asked after before_storing(), and
        only if the answer has `keys`."""
    def before_storing(self, queues: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The queues that the message still goes to: these, or fewer.  None: it goes nowhere at all, and the participants
        behind this one are neither asked nor told.  Raises OSError if the disk has no room for the feature's own record: then
        the publish waits, and all participants are asked again.  Must not raise anything else."""
    def after_storing(self, message: Message, channel: Any, stored: tuple[Any, ...]) -> None:
        """The message has been stored in the queues `stored`: a queue may have refused it, and an immediate message may
        be nowhere.  channel: where it was published; None: the broker itself sent it.  Must not raise."""

class Asked:
    """The names and values that the bindings of one headers exchange ask for in a message's headers.  It may hold more
    of them than add() was given, but never fewer."""
    def __len__(self) -> int:
        """How many names and values are asked for.  Takes time in proportion to their number."""
    def add(self, table: bytes) -> None:
        """Add the names and values of one more binding: a field table, its length first.  A void value asks for the name alone.
        Raises ValueError: no field table."""
    def remove(self, table: bytes) -> None:
        """Take the names and values of one binding back.  Raises ValueError: no field table."""

class HeaderBindings(Asked):
    """The bindings of one headers exchange, as tables that the plane reads and exchanges/headers.py keeps.  Their keys are
    octets: names as short strings, and *plain values*: two values that bindings take as equal are the same octets.
    Their values are destinations in one of the forms of exchanges/destinations_of_key.py.  A change shows in the next
    answers; routes that are remembered need Routes.clear()."""
    always: Any                              # the destinations of bindings that match every message
    by_condition: dict[bytes, Any]           # destinations of bindings that need only one match: by name, or name and value
    shapes_of: dict[bytes, list[Shape]]      # by anchor
    def __init__(self, compound: Callable[[bytes], bytes]) -> None:
        """compound(octets): octets for a table, array or decimal (kind and value), the same for all that are equal; they begin
        with the kind."""
    def values(self, table: bytes) -> dict[bytes, bytes]:
        """Plain values by name, in the table's order.  Raises ValueError: no field table."""
    def find(self, table: bytes) -> list[Any]:
        """The destinations of a message with this header table; one may stand there more than once.  Raises ValueError: no
        field table."""

class Shape:
    """Bindings of one headers exchange that ask for values of the same headers, and for the presence of the same other headers."""
    def __init__(self, valued: tuple[bytes, ...], there: tuple[bytes, ...], anchor: bytes) -> None: ...
    valued: tuple[bytes, ...]; there: tuple[bytes, ...]     # names
    anchor: bytes                            # one of these names: shapes are looked up by it
    by_values: dict[bytes, Any]              # destinations by the plain values of `valued`, one behind the other

class Answer:
    """The answer of routing to one publish.  The plane reads it in C, and calls its participants if it has some."""
    def __init__(self, queues: tuple[Any, ...], *, tally: Tally | None = None, cacheable: bool = False,
                 properties: bytes | None = None, participants: tuple[Participant, ...] = (),
                 keys: Keys | None = None, by_headers: tuple[Asked, ...] = (), delays: bool = False,
                 checks_keys: bool = False, window: ExchangeWindow | None = None,
                 decided_by: HeaderBindings | None = None) -> None: ...
    queues: tuple[Any, ...]      # each once, where the message is to be stored, unless a participant says otherwise
    tally: Tally | None          # where the publish is counted
    cacheable: bool              # the next message of that exchange and key goes there too
    properties: bytes | None     # stored in place of the message's own; such an answer is never cached
    participants: tuple[Participant, ...]   # asked and told in this order
    by_headers: tuple[Asked, ...]    # the answer also holds for a message of that exchange and key with the same values of the
                                 # headers that these ask for; (): it does not.  A cacheable answer holds for all headers
    delays: bool                 # an answer remembered by headers holds only for messages with a plain delay
    checks_keys: bool            # the plane itself looks for duplicates, in the windows of the queues and in `window`.  Such an
                                 # answer holds for messages with a plain key or without one, and has no participants
    window: ExchangeWindow | None    # the keys that the exchange knows; None: it has no rule
    decided_by: HeaderBindings | None    # these decide where the next message of that exchange and key goes.  The plane still
                                 # asks if they lead to no queue, to an exchange, or to a queue that looks for duplicates, or
                                 # if the headers that they ask for are too long to be remembered
    keys: Keys | None            # that the message's records carry; only with a participant that looks for duplicates
    def take_body(self, body: bytes) -> None:
        """The message's body, which may be its deduplication key.  Code that calls before_storing() calls this first."""
    def before_storing(self) -> tuple[Any, ...]:
        """Ask the participants, and return the queues that they leave.  Code that stores a message with Core.put() calls
        this first."""
    def after_storing(self, message: Message, channel: Any, stored: tuple[Any, ...]) -> None:
        """Tell those participants that the last before_storing() has asked."""
    @property
    def counts_as_routed(self) -> bool:
        """Whether a participant takes the message, so that the message is not returned even if no queue is left."""
    @property
    def refuses(self) -> bool:
        """Whether a participant refuses the message, so that the publisher must be told."""

class Routes:
    """Remembers where messages go, for each (exchange, routing key) that one user of one vhost publishes to.  If headers
    decide, it remembers this for each (exchange, routing key, headers that bindings ask for)."""
    def __init__(self, core: Core, resolve: Callable[[bytes, bytes, bytes, Channel], Answer]) -> None:
        """resolve(exchange, routing_key, header_payload, channel) -> Answer; raises AMQPError.

        It is called again for the next message if the answer is neither cacheable nor by headers.  It is called for every
        message with a user-id, a CC or BCC header, a reply-to that begins amq.rabbitmq.reply-to or amq.direct.reply-to, or
        an expiration that is not a plain number of at most ten years."""
    def clear(self) -> None:
        """Forget all answers, because a binding, exchange, queue or permission has changed."""

class Letters:
    """How the plane itself makes and stores the dead letters of one queue, instead of asking on_dead()."""
    def __init__(self, routes: Routes, queue: bytes, exchange: bytes, routing_key: bytes | None = None, *,
                 per_message: bool = False, at_least_once: bool = False) -> None:
        """queue: its name.  exchange, routing_key: where its dead letters go; None: each keeps its own routing key.

        `routes` is asked once for each exchange and key, with an empty header and without a channel.  on_dead() is called for
        a letter if one of these is true: the answer is not cacheable or has participants; a target is the queue itself, or
        has reject-publish-dlx; the headers hold more than the plane reads; per_message, and they hold an
        x-dead-letter-exchange or -routing-key; at_least_once, and there is no target, or one may refuse.  Raises ValueError
        for a name of more than 255 octets."""
    routes: Routes
    def make(self, reason: str, exchange: bytes, routing_key: bytes, properties: bytes, time_s: int, own: bytes = b""
             ) -> bytes | None:
        """The properties of the dead letter of such a message; None: on_dead() is called for it.  own: what letter_headers()
        says of the message.  For tests."""

