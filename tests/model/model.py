"""What the data plane promises, in plain Python: queues, consumers, credit, settlements, confirms.

    Queue     ready messages by sequence number; consumers that have credit, in rings by priority
    Consumer  one basic.consume
    Channel   unacked deliveries by tag, limits, publish numbers

``Queue.next_consumer`` is the whole rule of who is served.  Knows nothing of octets or files.
"""

from bisect import insort


class Message:
    __slots__ = ("body", "key", "mandatory", "persistent", "redelivered", "seq")

    def __init__(self, seq, key, body, persistent):
        self.seq, self.key, self.body, self.persistent = seq, key, body, persistent
        self.redelivered = False

    def __lt__(self, other):
        return self.seq < other.seq

    def __repr__(self):
        return f"<{self.seq} {self.body[:12]!r}>"


class Queue:
    def __init__(self, name, durable):
        self.name, self.durable = name, durable
        self.next_seq = 1
        self.taken = 0                  # the highest sequence number ever handed out or purged
        self.ready = []
        self.unacked = 0
        self.rings = {}                 # priority: consumers, the next to be served first
        self.consumers = []
        self.dropped = False
        self.octets_estimated = False

    def append(self, key, body, persistent):
        if not self.dropped:
            self.ready.append(Message(self.next_seq, key, body, persistent))
            self.next_seq += 1

    def take(self):
        message = self.ready.pop(0)
        self.taken = max(self.taken, message.seq)
        return message

    def give_back(self, message):
        message.redelivered = True
        if not self.dropped:
            insort(self.ready, message)

    def purge(self):
        count = len(self.ready)
        if self.ready:
            self.taken = max(self.taken, self.ready[-1].seq)
        self.ready = []
        return count

    def drop(self):
        for consumer in list(self.consumers):
            consumer.cancel()
        self.dropped = True
        self.ready = []

    def next_consumer(self, leave=False):
        """The first with credit in the ring of the highest priority that has one; those before it lose their place
        (if `leave`)."""
        if not self.ready:
            return None
        for priority in sorted(self.rings, reverse=True):
            for consumer in list(self.rings[priority]):
                if consumer.has_credit:
                    return consumer
                if leave:
                    consumer.leave_ring()
        return None

    def restart(self):
        """What is left after kill -9: what had been handed out comes again, as redelivered."""
        self.octets_estimated = True    # see store/recovery.py
        for message in self.ready:
            message.redelivered = message.seq <= self.taken


class Consumer:
    def __init__(self, channel, queue, tag, no_ack, priority):
        self.channel, self.queue, self.tag, self.no_ack, self.priority = channel, queue, tag, no_ack, priority
        self.prefetch = channel.prefetch
        self.unacked = 0
        self.closed = False
        queue.consumers.append(self)
        channel.consumers[tag] = self
        self.credit_again()

    @property
    def has_credit(self):
        channel = self.channel
        if self.closed or channel.connection.paused or not channel.flow:
            return False
        if self.no_ack:
            return True
        return not (self.prefetch and self.unacked >= self.prefetch) and not (
            channel.global_prefetch and len(channel.unacked) >= channel.global_prefetch)

    @property
    def ring(self):
        return self.queue.rings.setdefault(self.priority, [])

    def leave_ring(self):
        if self in self.ring:
            self.ring.remove(self)

    def credit_again(self):
        if self not in self.ring and self.has_credit:
            self.ring.append(self)

    def serve(self):
        """The next message, and its tag."""
        self.queue.next_consumer(leave=True)
        message, tag = self.queue.take(), self.channel.next_tag
        self.channel.next_tag += 1
        self.leave_ring()
        if not self.no_ack:
            self.channel.unacked[tag] = self.queue, message, self
            self.queue.unacked += 1
            self.unacked += 1
        if self.no_ack or not self.prefetch or self.unacked < self.prefetch:
            self.ring.append(self)
        return message, tag

    def cancel(self):
        self.leave_ring()
        self.closed = True
        self.queue.consumers.remove(self)
        del self.channel.consumers[self.tag]


class Channel:
    def __init__(self, connection, number):
        self.connection, self.number = connection, number
        self.consumers = {}
        self.unacked = {}
        self.next_tag = 1
        self.prefetch = self.global_prefetch = 0
        self.flow = True
        self.confirm = False
        self.published = 0              # since confirm.select
        self.confirmed = 0
        self.unsynced = []              # publish numbers that wait for a sync
        self.snapshot = 0               # published when the sync under way began
        connection.channels[number] = self

    def credit(self):
        for consumer in self.consumers.values():
            consumer.credit_again()

    def publish(self, queues, key, body, persistent):
        for queue in queues:
            queue.append(key, body, persistent)
        if self.confirm:
            self.published += 1
            if persistent and any(queue.durable and not queue.dropped for queue in queues):
                self.unsynced.append(self.published)

    def settle(self, tag, multiple, requeue):
        """False: unknown delivery tag."""
        if tag == 0:
            if not multiple:
                return False
            tags = sorted(self.unacked)
        elif tag not in self.unacked:
            return False
        else:
            tags = sorted(one for one in self.unacked if one <= tag) if multiple else [tag]
        for one in tags:
            queue, message, consumer = self.unacked.pop(one)
            queue.unacked -= 1
            if requeue:
                queue.give_back(message)
            if consumer is not None:
                consumer.unacked -= 1
                consumer.credit_again()
        if tags and self.global_prefetch:
            self.credit()
        return True

    def get(self, queue, no_ack):
        """(message, tag), or None."""
        if not queue.ready:
            return None
        message, tag = queue.take(), self.next_tag
        self.next_tag += 1
        if not no_ack:
            self.unacked[tag] = queue, message, None
            queue.unacked += 1
        return message, tag

    def close(self):
        for consumer in list(self.consumers.values()):
            consumer.cancel()
        self.settle(0, True, True)
        del self.connection.channels[self.number]

    def may_confirm(self):
        """The highest publish number that may be confirmed now."""
        return self.unsynced[0] - 1 if self.unsynced else self.published


class Connection:
    def __init__(self):
        self.channels = {}
        self.paused = False

    def pause(self):
        self.paused = True
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                consumer.leave_ring()

    def resume(self):
        self.paused = False
        for channel in self.channels.values():
            channel.credit()

    def close(self):
        for channel in list(self.channels.values()):
            channel.close()
