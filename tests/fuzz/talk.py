"""What a hostile client says after a good login: inputs, made of a Random alone.

An input is one method of any class, with its content where it has one, or a heartbeat.  Names come from small pools,
and each name has one shape that it is mostly declared with, so that queues, exchanges and bindings of every kind build
up and meet.  Some inputs have wrong values, some are spoiled: octets changed, cut off, on another channel, in another
order.

An input is octets, or a Settle where only the client knows which deliveries are out.  Knows nothing of sockets.
"""

import struct
from typing import NamedTuple

from tests.fuzz.fuzz_frames import spoil
from tests.plane import harness

from brokerd.arguments import QUEUE_ARGUMENTS
from brokerd.wire import methods
from brokerd.wire.properties import Properties, encode_header
from brokerd.wire.values import Int64, Timestamp

CHANNELS = (1, 2, 3, 4)
FRAME_MAX = 8192
NO_ACK = "n"        # how tags of consumers without acks begin


class Settle(NamedTuple):
    """An ack, reject or nack of a delivery that is out: the oldest, the newest, or any if ``pick`` is above 1."""

    channel: int
    method: int
    pick: int
    multiple: bool
    requeue: bool
    otherwise: int      # the tag if none is out

    def octets(self, out):
        """The method, for the delivery tags that are ``out``; it takes out what it settles."""
        tag = self.otherwise
        if out:
            place = 0 if self.pick == 0 else len(out) - 1 if self.pick == 1 else self.pick % len(out)
            tag = out[place]
            del out[0 if self.multiple and self.method != harness.REJECT else place:place + 1]
        elif self.pick < 8:
            return harness.ack(self.channel, 0, multiple=True)      # No fault when nothing is out.
        if self.method == harness.ACK:
            return harness.ack(self.channel, tag, self.multiple)
        if self.method == harness.REJECT:
            return harness.reject(self.channel, tag, self.requeue)
        return harness.nack(self.channel, tag, self.multiple, self.requeue)


def shape(*, durable=True, exclusive=False, auto_delete=False, **arguments):
    names = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return {"durable": durable, "exclusive": exclusive, "auto_delete": auto_delete, "arguments": names}


# A queue's name, and how it is mostly declared.  Dead letters go in circles: from cycle.a to cycle.b and back.
QUEUES = {
    "plain": shape(), "transient": shape(durable=False), "mine": shape(durable=False, exclusive=True),
    "mine.durable": shape(exclusive=True), "gone": shape(durable=False, auto_delete=True),
    "quorum": shape(queue_type="quorum", delivery_limit=3), "lazy": shape(queue_mode="lazy", queue_version=2),
    "levels": shape(max_priority=3), "levels.all": shape(max_priority=255, durable=False),
    "levels.kept": shape(max_priority=2, order_journal=True, max_length=30, dead_letter_exchange="letters"),
    "short.lived": shape(message_ttl=4, dead_letter_exchange="letters"), "at once": shape(message_ttl=0, durable=False),
    "few": shape(max_length=5, dead_letter_exchange="letters", dead_letter_routing_key="a.b.c"),
    "few.octets": shape(max_length_bytes=3000, overflow="reject-publish"),
    "few.refused": shape(max_length=4, overflow="reject-publish-dlx", dead_letter_exchange=""),
    "thrice": shape(delivery_limit=2, dead_letter_exchange="letters"),
    "thrice.dropped": shape(delivery_limit=1, delivery_limit_action="drop", dead_letter_exchange="letters"),
    "one.reader": shape(single_active_consumer=True), "journal": shape(order_journal=True),
    "journal.short": shape(order_journal=True, order_journal_retention_bytes=0, message_ttl=20),
    "keys": shape(message_deduplication=True, cache_size=4),
    "keys.timed": shape(message_deduplication=True, cache_ttl=5, deduplication_header="key", durable=False),
    "expires": shape(expires=60, durable=False), "expires.durable": shape(expires=200),
    "late": shape(consumer_timeout=15), "late.closed": shape(consumer_timeout=20, consumer_timeout_action="close"),
    "surely": shape(dead_letter_exchange="letters", dead_letter_strategy="at-least-once", overflow="reject-publish",
                    queue_type="quorum", max_length=20),
    "cycle.a": shape(dead_letter_exchange="", dead_letter_routing_key="cycle.b", max_length=50),
    "cycle.b": shape(dead_letter_exchange="", dead_letter_routing_key="cycle.a", message_ttl=3),
    "cycle.self": shape(dead_letter_exchange="", dead_letter_routing_key="cycle.self", delivery_limit=1, max_length=9),
    "delayed.letters": shape(dead_letter_exchange="delay.topic", message_ttl=2, max_length=20),
}
QUEUE_NAMES = tuple(QUEUES)
NAMES = (*QUEUE_NAMES, "", "missing", "amq.gen-no", "amq.rabbitmq.reply-to", "n\r\n", "é" * 127, "\udcff\udc80")


def kind(type_, *, durable=True, auto_delete=False, internal=False, **arguments):
    names = {name if name in ("alternate_exchange",) else f"x-{name.replace('_', '-')}": value
             for name, value in arguments.items()}
    names = {name.replace("_", "-"): value for name, value in names.items()}
    return {"type": type_, "durable": durable, "auto_delete": auto_delete, "internal": internal, "arguments": names}


EXCHANGES = {
    "letters": kind("topic"), "direct": kind("direct"), "fanout": kind("fanout"), "topic": kind("topic"),
    "headers": kind("headers"), "direct.transient": kind("direct", durable=False),
    "fanout.gone": kind("fanout", durable=False, auto_delete=True), "inner": kind("fanout", internal=True),
    "hash": kind("x-consistent-hash"), "hash.jump": kind("x-consistent-hash", algorithm="jump", hash_on="h"),
    "modulus": kind("x-modulus-hash"), "any": kind("x-random"), "any.local": kind("x-local-random", durable=False),
    "recent": kind("x-recent-history", recent_history_length=3), "recent.short": kind("x-recent-history",
    durable=False),
    "delay.direct": kind("x-delayed-message", delayed_type="direct"),
    "delay.topic": kind("x-delayed-message", delayed_type="topic"),
    "delay.transient": kind("x-delayed-message", delayed_type="fanout", durable=False),
    "delay.headers": kind("x-delayed-message", delayed_type="headers"),
    "once": kind("fanout", message_deduplication=True, cache_size=5),
    "once.transient": kind("topic", durable=False, message_deduplication=True, cache_ttl=10),
    "otherwise": kind("direct", alternate_exchange="fanout"), "otherwise.too": kind("topic",
    alternate_exchange="letters"),
}
EXCHANGE_NAMES = (*EXCHANGES, "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match")
OTHER_EXCHANGES = ("", "missing", "amq.rabbitmq.trace", "amq.rabbitmq.event", "amq.rabbitmq.log", "amq.own", "\n",
                   "x" * 255)
TYPES = ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random",
         "x-recent-history", "x-delayed-message", "none", "")
KEYS = ("", "k", "a", "a.b", "a.b.c", "1", "2", "3", "plain", "few", "cycle.a", "levels", "é", "\udcff", "x" * 255,
        "a." * 100)
PATTERNS = (*KEYS, "#", "*", "a.*", "a.#", "#.c", "*.b.#", "#.#.#", "*.*.*", "0", "-1", "99999999999")
TAGS = ("", "t1", "t2", "t3", "x" * 255)

# Values for arguments and headers: right for some names, wrong for others.
VALUES = (
    0, 1, 2, 3, 5, 20, 100, 255, 256, 65535, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), Int64(7), True, False, None,
    1.5, 1e300,
    "", "letters", "a.b", "classic", "quorum", "stream", "drop-head", "reject-publish", "at-least-once", "lazy",
    "return",
    "drop", "1s", "7D", "0s", "jump", "all", "any", "all-with-x", "any-with-x", "client-local", b"\xff",
    Timestamp(5), [],
    [1, "a", [2]], {}, {"a": {"b": [None]}}, "plain", "missing", "topic", "x" * 300,
)
ARGUMENT_NAMES = tuple(row.name for row in QUEUE_ARGUMENTS)
EXCHANGE_ARGUMENT_NAMES = (
    "alternate-exchange", "x-delayed-type", "x-delayed-exchange", "x-message-deduplication", "x-cache-size",
    "x-cache-ttl",
    "x-deduplication-header", "x-algorithm", "hash-header", "x-hash-on", "hash-property", "x-recent-history-length",
    "odd")
BINDINGS = (
    {}, {}, {}, {"x-match": "all", "a": 1}, {"x-match": "any", "a": 1, "b": "t"}, {"x-match": "all-with-x",
    "x-a": True},
    {"x-match": "any-with-x", "x-a": True, "c": None}, {"a": None}, {"x-match": "odd"}, {"x-match": 5}, {"b": [1],
    "c": {}},
    {"n": 1.5}, {"n": Int64(3)}, {"t": Timestamp(4)}, {"s": "x" * 300},
)
HEADERS = (
    {}, {"a": 1}, {"a": 1, "b": "t"}, {"x-a": True}, {"n": 3}, {"n": 1.5}, {"t": Timestamp(4)}, {"b": [1], "c": {}},
    {"CC": ["plain", "few"]}, {"BCC": ["levels"], "CC": ["k"]}, {"CC": "no list"}, {"CC": [1]}, {"BCC": []},
    {"x-delay": 1}, {"x-delay": 8}, {"x-delay": -5}, {"x-delay": "soon"}, {"x-delay": 1 << 62}, {"x-deliver-at": 5},
    {"x-deliver-at": "2001-01-01T00:00:00Z"}, {"x-deliver-at": "never"}, {"x-deliver-at": Timestamp(1 << 40)},
    {"x-deduplication-header": "one"}, {"x-deduplication-header": 2}, {"key": "one"}, {"key": b"two", "x-cache-ttl": 3},
    {"MessageDeduplicationId": "m"}, {"x-deduplication-header": "one", "x-cache-ttl": "odd"}, {"h": "1"}, {"h": 17},
    {"x-death": [{"queue": "few", "reason": "maxlen", "count": 3, "exchange": "", "routing-keys": ["a"]}]},
    {"x-death": "odd"}, {"x-death": [{"count": "odd"}, 5]}, {"x-first-death-queue": "few", "x-delivery-count": 9},
)
CONSUMER_ARGUMENTS = ({}, {}, {}, {"x-priority": 1}, {"x-priority": -3}, {"x-priority": "odd"},
                      {"x-priority": Int64(1 << 40)},
                      {"x-cancel-on-ha-failover": True})
SIZES = (0, 0, 1, 5, 5, 60, 60, 300, 2000, 8184, 8185, 19_000, 21_000)


def property_pool():
    """Properties as octets: each of HEADERS, transient and persistent, and each property by itself."""
    sets = [{"delivery_mode": 2}, {"delivery_mode": 1}, {}, {"priority": 2}, {"priority": 9, "delivery_mode": 2},
            {"priority": 255}, {"expiration": "0"}, {"expiration": "3", "delivery_mode": 2}, {"expiration": "-1"},
            {"expiration": "odd"}, {"expiration": "99999999999999999999"}, {"reply_to": "amq.rabbitmq.reply-to"},
            {"reply_to": "amq.rabbitmq.reply-to.odd"}, {"user_id": "guest"}, {"user_id": "odd"},
            {"correlation_id": "c"},
            {"message_id": "m"}, {"timestamp": 1 << 63}, {"type": "t", "app_id": "a", "cluster_id": "c"},
            {"content_type": "text/plain", "content_encoding": "x", "delivery_mode": 3}]
    for headers in HEADERS:
        sets += [{"headers": headers, "delivery_mode": 2}, {"headers": headers}, {"headers": headers, "priority": 1}]
    return [encode_header(0, Properties(**each))[12:] for each in sets]


PROPERTIES = property_pool()
LIKELY = PROPERTIES[:8]
BODIES = {size: bytes(size) for size in SIZES}
WEIGHTS = {
    "publish": 40, "settle": 17, "declare_queue": 9, "declare_exchange": 4, "bind": 5, "unbind": 2, "bind_exchange": 2,
    "unbind_exchange": 1, "consume": 6, "cancel": 2, "get": 5, "qos": 2, "purge": 1, "delete_queue": 1,
    "delete_exchange": 0.6, "recover": 1, "confirm": 1, "tx": 4, "flow": 0.7, "channel": 2, "connection": 0.3,
    "flood": 0.2, "server_only": 0.15, "heartbeat": 0.5, "unknown": 0.05, "reply": 1.5,
}
SERVER_ONLY = tuple(method for name, method in methods.BY_NAME.items()
                    if name.endswith("-ok") or name in ("connection.start", "connection.secure", "connection.tune",
                                                        "connection.blocked", "connection.unblocked", "basic.deliver",
                                                        "basic.return", "basic.get-empty"))


def publish(rng, exchange, key, channel):
    """basic.publish with content, most often in as few frames as may be."""
    body = BODIES[rng.choice(SIZES)]
    properties = rng.choice(LIKELY if rng.random() < 0.5 else PROPERTIES)
    bits = 0 if rng.random() < 0.7 else rng.choice((1, 1, 1, 2, 3))
    piece = FRAME_MAX - 8 if rng.random() < 0.95 or len(body) > 300 else 7
    out = harness.frame(1, channel, harness.publish_method(octets_of(key), octets_of(exchange), bits))
    out += harness.frame(2, channel, harness.content_header(len(body), properties))
    return out + b"".join(harness.frame(3, channel, body[at:at + piece]) for at in range(0, len(body), piece))


def octets_of(name):
    return name.encode("utf-8", "surrogateescape")[:255]


class Talker:
    """Inputs of one connection.  ``hostility`` is the share of inputs that are spoiled: these mostly end it."""

    def __init__(self, rng, hostility):
        self.rng, self.hostility = rng, hostility
        self.kinds, self.weights = list(WEIGHTS), list(WEIGHTS.values())
        self.before = b""
        self.consumers = 0
        # A client has few things to do with, so that they meet.
        self.queues = rng.sample(QUEUE_NAMES, 5)
        self.exchanges = rng.sample(EXCHANGE_NAMES, 4)
        self.channels = rng.sample(CHANNELS, rng.choice((1, 2, 3, 4)))

    def start(self):
        """What the client says before all else: its channels, and often queues, exchanges and bindings to work with."""
        rng = self.rng
        parts = [methods.ChannelOpen().frame(channel) for channel in self.channels]
        if rng.random() < 0.5:
            for queue, exchange in zip(self.queues, self.exchanges, strict=False):
                channel = rng.choice(self.channels)
                parts.append(methods.QueueDeclare(queue=queue, **QUEUES[queue]).frame(channel))
                if exchange in EXCHANGES:
                    parts.append(methods.ExchangeDeclare(exchange=exchange, **EXCHANGES[exchange]).frame(channel))
                parts.append(methods.QueueBind(queue=queue, exchange=exchange, routing_key=rng.choice(PATTERNS)[:255],
                                               arguments=rng.choice(BINDINGS[:7])).frame(channel))
        for mode in (methods.ConfirmSelect(), methods.TxSelect()):
            if rng.random() < 0.3:
                parts.append(mode.frame(self.channels[-1]))
                break
        return parts

    def next(self):
        """One input."""
        rng = self.rng
        channel = rng.choice(self.channels)
        [name] = rng.choices(self.kinds, self.weights)
        made = getattr(self, name)(rng, channel)
        if self.hostility and rng.random() < self.hostility and isinstance(made, bytes):
            made = self.spoiled(made)
        if isinstance(made, bytes):
            self.before = made
        return made

    def spoiled(self, octets):
        """The input with something wrong in it, among its frames or in any octets."""
        rng = self.rng
        way = rng.randrange(10)
        if way == 0:
            changed = bytearray(octets)
            spoil(rng, changed, self.before or octets)
            return bytes(changed)
        if way == 1:
            return octets[:rng.randrange(len(octets))]
        frames = harness.cut(octets)
        at = rng.randrange(len(frames))
        number, channel, payload = frames[at]
        if way < 7:
            changed = bytearray(payload)
            spoil(rng, changed, self.before or octets)
            frames[at] = number, channel, bytes(changed)
        elif way == 7:
            frames[at] = number, rng.choice((0, 1, 2, 3, 4, 5, 0xFFFF)), payload
        elif way == 8:
            frames.insert(rng.randrange(len(frames) + 1), frames[at] if rng.random() < 0.5 else frames.pop(at))
        else:
            frames[at] = rng.choice((0, 1, 2, 3, 4, 8, 255)), channel, payload
        return b"".join(harness.frame(*one) for one in frames)

    # --- names

    def queue(self):
        rng = self.rng
        return rng.choice(self.queues) if rng.random() < 0.93 else rng.choice(NAMES)

    def exchange(self):
        rng = self.rng
        return rng.choice(self.exchanges) if rng.random() < 0.95 else rng.choice(OTHER_EXCHANGES)

    def arguments(self, names):
        rng = self.rng
        return {rng.choice(names): rng.choice(VALUES) for _ in range(rng.choice((0, 1, 1, 2, 3)))}

    # --- a method each

    def publish(self, rng, channel):
        if rng.random() < 0.6:
            return publish(rng, "", self.queue(), channel)
        return publish(rng, self.exchange(), rng.choice(KEYS), channel)

    def flood(self, rng, channel):
        """More than a segment takes in a few inputs, or more than a socket does at once."""
        count, size = rng.choice(((25, 19_000), (60, 5000), (2, 200_000)))
        key = octets_of(rng.choice(self.queues))
        one = harness.publish(channel, bytes(size), key, properties=rng.choice(LIKELY), frame_max=FRAME_MAX)
        return one * count

    def reply(self, rng, channel):
        """Direct reply-to: mostly its consumer, or a request."""
        if rng.random() < 0.4:
            self.consumers += 1
            return methods.BasicConsume(queue="amq.rabbitmq.reply-to", no_ack=rng.random() < 0.9,
                                        consumer_tag=f"{NO_ACK}replies {self.consumers}").frame(channel)
        body = BODIES[rng.choice(SIZES)]
        return harness.publish(channel, body, octets_of(self.queue()), properties=PROPERTIES[11], frame_max=FRAME_MAX)

    def settle(self, rng, channel):
        return Settle(channel, rng.choice((harness.ACK, harness.ACK, harness.NACK, harness.REJECT)),
                      rng.choice((0, 0, 0, 1, 2, 3, 5, 8)), rng.random() < 0.3, rng.random() < 0.6,
                      rng.choice((0, 1, 2, 7, 1 << 63)))

    def declare_queue(self, rng, channel):
        name = self.queue()
        settings = QUEUES.get(name) or shape(durable=False, exclusive=True)
        if rng.random() < 0.15:
            settings = dict(settings, arguments=settings["arguments"] | self.arguments(ARGUMENT_NAMES))
        if rng.random() < 0.03:
            settings = dict(settings, durable=rng.random() < 0.5, exclusive=rng.random() < 0.5)
        return methods.QueueDeclare(queue=name, passive=rng.random() < 0.1, no_wait=rng.random() < 0.2,
                                    **settings).frame(channel)

    def declare_exchange(self, rng, channel):
        name = self.exchange()
        settings = EXCHANGES.get(name) or kind(rng.choice(TYPES))
        if rng.random() < 0.15:
            settings = dict(settings, arguments=settings["arguments"] | self.arguments(EXCHANGE_ARGUMENT_NAMES))
        if rng.random() < 0.03:
            settings = dict(settings, type=rng.choice(TYPES))
        return methods.ExchangeDeclare(exchange=name, passive=rng.random() < 0.1, no_wait=rng.random() < 0.2,
                                       **settings).frame(channel)

    def binding(self, rng):
        exchange = self.exchange()
        key = rng.choice(PATTERNS)
        if exchange.startswith("hash"):
            key = rng.choice(("1", "2", "1", "3", key))
        return exchange, key, rng.choice(BINDINGS) if rng.random() < 0.6 else self.arguments(("a", "b", "x-match", "n"))

    def bind(self, rng, channel):
        exchange, key, arguments = self.binding(rng)
        return methods.QueueBind(queue=self.queue(), exchange=exchange, routing_key=key, arguments=arguments,
                                 no_wait=rng.random() < 0.2).frame(channel)

    def unbind(self, rng, channel):
        exchange, key, arguments = self.binding(rng)
        return methods.QueueUnbind(queue=self.queue(), exchange=exchange, routing_key=key,
                                   arguments=arguments).frame(channel)

    def bind_exchange(self, rng, channel):
        exchange, key, arguments = self.binding(rng)
        return methods.ExchangeBind(destination=self.exchange(), source=exchange, routing_key=key, arguments=arguments,
                                    no_wait=rng.random() < 0.2).frame(channel)

    def unbind_exchange(self, rng, channel):
        exchange, key, arguments = self.binding(rng)
        return methods.ExchangeUnbind(destination=self.exchange(), source=exchange, routing_key=key,
                                      arguments=arguments, no_wait=rng.random() < 0.2).frame(channel)

    def consume(self, rng, channel):
        # A tag that is used twice ends the connection.  The client settles no delivery of a tag with NO_ACK.
        self.consumers += 1
        no_ack = rng.random() < 0.3
        tag = f"{NO_ACK if no_ack else 'a'}{self.consumers}"
        tag = rng.choice(TAGS) if rng.random() < 0.03 else tag
        return methods.BasicConsume(queue=self.queue(), consumer_tag=tag, no_ack=no_ack, exclusive=rng.random() < 0.05,
                                    no_local=rng.random() < 0.1, no_wait=rng.random() < 0.1,
                                    arguments=rng.choice(CONSUMER_ARGUMENTS)).frame(channel)

    def cancel(self, rng, channel):
        tag = f"{rng.choice((NO_ACK, 'a'))}{rng.randrange(self.consumers + 1)}"
        tag = tag if rng.random() < 0.9 else rng.choice(TAGS)
        return methods.BasicCancel(consumer_tag=tag, no_wait=rng.random() < 0.3).frame(channel)

    def get(self, rng, channel):
        return methods.BasicGet(queue=self.queue(), no_ack=rng.random() < 0.4).frame(channel)

    def qos(self, rng, channel):
        return methods.BasicQos(prefetch_count=rng.choice((0, 1, 2, 3, 10, 100, 65535)), global_=rng.random() < 0.4,
                                prefetch_size=0 if rng.random() < 0.99 else 5).frame(channel)

    def purge(self, rng, channel):
        return methods.QueuePurge(queue=self.queue(), no_wait=rng.random() < 0.2).frame(channel)

    def delete_queue(self, rng, channel):
        return methods.QueueDelete(queue=self.queue(), if_unused=rng.random() < 0.3, if_empty=rng.random() < 0.2,
                                   no_wait=rng.random() < 0.2).frame(channel)

    def delete_exchange(self, rng, channel):
        return methods.ExchangeDelete(exchange=self.exchange(), if_unused=rng.random() < 0.4,
                                      no_wait=rng.random() < 0.2).frame(channel)

    def recover(self, rng, channel):
        method = rng.choice((methods.BasicRecover, methods.BasicRecoverAsync))
        return method(requeue=rng.random() < 0.99).frame(channel)

    def confirm(self, rng, channel):
        return methods.ConfirmSelect(no_wait=rng.random() < 0.3).frame(channel)

    def tx(self, rng, channel):
        """Several in a row, as only the one after the select does something."""
        chosen = rng.choice(((methods.TxSelect,), (methods.TxCommit,), (methods.TxCommit,), (methods.TxRollback,),
                             (methods.TxCommit, methods.TxCommit, methods.TxRollback)))
        channel = self.channels[-1] if rng.random() < 0.9 else channel
        return b"".join(method().frame(channel) for method in chosen)

    def flow(self, rng, channel):
        return methods.ChannelFlow(active=rng.random() < 0.7).frame(channel)

    def channel(self, rng, channel):
        way = rng.randrange(8)
        if way < 6:
            close = methods.ChannelClose(reply_code=200, reply_text="bye").frame(channel)
            return close + methods.ChannelOpen().frame(channel)
        if way == 6:
            return methods.ChannelCloseOk().frame(channel)
        return methods.ChannelOpen().frame(channel if rng.random() < 0.1 else rng.choice((5, 6, 2047, 0xFFFF)))

    def connection(self, rng, channel):
        return rng.choice((
            methods.ConnectionUpdateSecret(new_secret=b"guest", reason="r").frame(0),
            methods.ConnectionUpdateSecret(new_secret=b"guest", reason="r").frame(0),
            methods.AccessRequest(realm="/data", active=True).frame(channel),
            methods.AccessRequest(realm="x" * 255, exclusive=True).frame(channel),
            methods.ConnectionOpen(virtual_host="/").frame(0), methods.ConnectionCloseOk().frame(0),
            methods.ConnectionUpdateSecret(new_secret=b"odd").frame(channel)))

    def server_only(self, rng, channel):
        return rng.choice(SERVER_ONLY)().frame(rng.choice((channel, channel, 0)))

    def heartbeat(self, rng, channel):
        return harness.frame(8, 0 if rng.random() < 0.97 else channel, b"")

    def unknown(self, rng, channel):
        ids = struct.pack(">HH", rng.choice((10, 20, 50, 60, 61, 90)), rng.choice((1, 12, 72, 99, 200)))
        return harness.frame(1, channel, ids + rng.randbytes(rng.choice((0, 1, 8))))
