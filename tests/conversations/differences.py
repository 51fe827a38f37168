"""Where brokerd answers otherwise than RabbitMQ on purpose: one entry for each such row of docs/compatibility.md.

The key is the row's first cell, the value what RabbitMQ does, in short.  Conversations that show a difference
are marked ``@differs(key)``; tests/test_compatibility.py holds keys, rows and marks against one another.
"""

DIFFERENCES = {
    "several channels of one connection": "each is worked off by a process of its own",
    "a message that is too large": "the whole body is read before it is refused",
    "content that is not what its header says": "taken, or 541",
    "a method that cannot be read": "502, 541 or the end without a word",
    "unknown method": "the socket is dropped, 503 or 541",
    "a heartbeat on a channel": "taken",
    "`channel.flow` from a client": "540",
    "AMQP 0-8": "spoken by 3.10",
    "authorization identity in PLAIN": "refused",
    "a login response that cannot be read": "541, or the end without a word",
    "unknown exchange type": "3.10: 503, the connection ends; 4.x: 406",
    "passive `queue.declare`": "3.10: needs no right",
    "`immediate`": "540, the connection ends",
    "the next single active consumer": "served while the former one still holds messages",
    "`x-priority` of a single active consumer": "classic queues: no meaning",
    "`x-max-priority` with a length": "the highest go first",
    "`queue.purge` of a stream": "540",
    "`queue.delete-ok` of a stream": "0 messages",
    "an `exclusive` reader of a stream": "the flag has no meaning",
    "offsets of a stream": "from 0",
    "refusals of a stream's readers": "an Erlang term",
    "`x-delivery-limit` of a classic queue": "406",
    "passive `queue.declare` without a name": "404 with an empty name",
}
