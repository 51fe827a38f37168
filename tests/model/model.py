"""What the data plane promises, in plain Python: queues, their rules, consumers, credit, settlements, confirms.

    Queue     ready messages by level and sequence number; consumers that have credit, in rings by priority
    Consumer  one basic.consume
    Channel   unacked deliveries by tag, limits, publish numbers
    Clock     what time it is, ns

``Queue.next_consumer`` is the whole rule of who is served.  Knows nothing of octets or files.
"""

from bisect import insort

DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX = range(3)
NEVER = 1 << 63


class Clock:
    def __init__(self, now=0):
        self.now = now


class Message:
    __slots__ = ("body", "count", "exchange", "from_before", "in_vain", "key", "level", "lifetime", "persistent",
                 "priority", "properties", "redelivered", "seq", "ts")

    def __init__(self, key, body, persistent, properties, *, exchange=b"", priority=0, lifetime=None):
        self.key, self.body, self.persistent, self.properties = key, body, persistent, properties
        self.exchange, self.priority, self.lifetime = exchange, priority, lifetime
        self.redelivered = False        # it was handed out before
        self.from_before = False        # ... and not since the last restart
        self.count = 0                  # failed deliveries
        self.in_vain = False            # rejected, and kept
        self.seq = self.ts = self.level = 0

    def __lt__(self, other):
        return (-self.level, self.seq) < (-other.level, other.seq)

    def __repr__(self):
        return f"<{self.level}.{self.seq} {self.body[:12]!r}>"

    def copy(self):
        return Message(self.key, self.body, self.persistent, self.properties, exchange=self.exchange,
                       priority=self.priority, lifetime=self.lifetime)

    def obituary(self, reason):
        """What on_dead() is told."""
        return reason, self.seq, self.exchange, self.key, self.properties, self.body, self.count


class Rules:
    def __init__(self, *, ttl_ms=-1, max_length=-1, max_octets=-1, overflow=DROP_HEAD, dead_letters=False,
                 delivery_limit=-1, limit_drops=False, delivery_counts=False, single_active=False,
                 consumer_timeout_ms=-1, timeout_closes=False):
        self.ttl = ttl_ms * 1_000_000 if ttl_ms >= 0 else None
        self.max_length = max_length if max_length >= 0 else NEVER
        self.max_octets = max_octets if max_octets >= 0 else NEVER
        self.overflow, self.dead_letters = overflow, dead_letters
        self.delivery_limit = max(delivery_limit, 1) if delivery_limit >= 0 else NEVER
        self.limit_drops, self.delivery_counts, self.single_active = limit_drops, delivery_counts, single_active
        self.timeout = consumer_timeout_ms * 1_000_000 if consumer_timeout_ms >= 0 else NEVER
        self.timeout_closes = timeout_closes

    @property
    def limited(self):
        return self.max_length < NEVER or self.max_octets < NEVER


class Queue:
    def __init__(self, name, durable, max_priority=0, clock=None):
        self.name, self.durable, self.max_priority = name, durable, max_priority
        self.clock = clock or Clock()
        self.rules = Rules()
        self.next_seq = 1
        self.last_ts = 0
        self.ready = []
        self.unacked = 0
        self.rings = {}                 # priority: consumers, the next to be served first
        self.consumers = []
        self.active = None
        self.draining = False
        self.dying = []                 # (reason, message), not told of yet
        self.died = []                  # told of
        self.keeps = False              # what is told of is kept
        self.kept = {}                  # seq: message
        self.expired = self.discarded = self.dead_lettered = self.refused = self.limited = self.timed_out = 0
        self.dropped = False
        self.octets_estimated = False

    # ---- messages

    @property
    def octets(self):
        return sum(len(message.body) for message in self.ready)

    def append(self, message):
        if self.dropped:
            return
        message.seq, message.level = self.next_seq, min(message.priority, self.max_priority)
        message.ts = self.last_ts = max(self.clock.now, self.last_ts + 1)
        self.next_seq += 1
        insort(self.ready, message)

    def leaves(self, message):
        self.ready.remove(message)
        return message

    def death(self, message):
        """Why it dies instead of being handed out; None: it does not."""
        if self.expires(message) < self.clock.now:
            return "expired"
        if message.from_before and message.count >= self.rules.delivery_limit:
            return "delivery_limit"
        return None

    def coming(self):
        """What would be handed out next."""
        return next((message for message in self.ready if self.death(message) is None), None)

    def take(self):
        """The message that comes next; what dies before it goes.  None: there is none."""
        self.look()
        return self.leaves(self.ready[0]) if self.ready else None

    def look(self):
        """What dies at the head when a consumer looks for a message."""
        while self.ready and (reason := self.death(self.ready[0])) is not None:
            self.limited += reason == "delivery_limit"
            self.kill(self.leaves(self.ready[0]), reason)

    def give_back(self, message):
        message.redelivered = True
        message.from_before = False
        if self.dropped:
            return
        message.count += 1
        if message.count >= self.rules.delivery_limit:
            self.limited += 1
            self.kill(message, "delivery_limit")
        else:
            insort(self.ready, message)

    def remove(self, message):
        self.ready.remove(message)

    def purge(self):
        count = len(self.ready)
        while self.ready:
            self.leaves(self.ready[0])
        return count

    def drop(self):
        self.dropped = True
        for consumer in list(self.consumers):
            consumer.cancel()
        self.ready = []

    # ---- rules

    def expires(self, message):
        times = [time for time in (self.rules.ttl, message.lifetime) if time is not None]
        return message.ts + min(times) if times else NEVER

    def heads(self):
        """The next message of each level, the lowest first."""
        found = {}
        for message in self.ready:
            found.setdefault(message.level, message)
        return [found[level] for level in sorted(found)]

    def expire(self):
        """What is over at the head of a level dies, and so on."""
        for head in self.heads():
            while head is not None and self.expires(head) <= self.clock.now:
                self.kill(self.leaves(head), "expired")
                head = next((message for message in self.ready if message.level == head.level), None)

    def is_over(self):
        return bool(self.ready) and (len(self.ready) > self.rules.max_length or self.octets > self.rules.max_octets)

    def keep_limits(self):
        while self.rules.overflow == DROP_HEAD and self.is_over():
            self.kill(self.leaves(self.heads()[0]), "maxlen")

    def refuses(self):
        return not self.dropped and self.rules.overflow != DROP_HEAD and (
            len(self.ready) >= self.rules.max_length or self.octets >= self.rules.max_octets) and not any(
            self.rings.values())

    def kill(self, message, reason):
        if self.dropped:
            return
        message.from_before = False
        self.expired += reason == "expired"
        self.discarded += reason == "maxlen"
        if self.rules.dead_letters and not (reason == "delivery_limit" and self.rules.limit_drops):
            self.dying.append((reason, message))

    def tell(self):
        """on_dead() is told of what died."""
        for reason, message in self.dying:
            self.died.append(message.obituary(reason))
            if self.keeps:
                self.kept[message.seq] = message
                message.in_vain = reason == "rejected"
            else:
                self.dead_lettered += 1
        self.dying = []

    def settle_aside(self, seq):
        del self.kept[seq]
        self.dead_lettered += 1

    # ---- consumers

    def may_be_next(self, consumer):
        """Whether it may be the next one: the first in its ring, apart from those that share credit with others."""
        first = self.next_consumer()
        if first is None or not consumer.has_credit or consumer.priority != first.priority:
            return False
        for other in self.rings[first.priority]:
            if other is consumer:
                return True
            if other.has_credit and not (other.shares_credit or consumer.shares_credit):
                return False
        return False

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

    def choose_active(self):
        """The first consumer, or one of higher priority, once nothing of the former one is unacked."""
        now = self.active
        if not self.rules.single_active or self.dropped or (now is not None and now.closed and now.unacked):
            return
        best = max(self.consumers, key=lambda consumer: consumer.priority, default=None)    # The first of several.
        if now is not None and not now.closed:
            if best.priority > now.priority and now.unacked:
                self.draining = True
                now.leave_ring()
                return
            if best.priority <= now.priority:
                best = now
            else:
                now.leave_ring()
        self.active, self.draining = best, False
        if best is not None:
            best.credit_again()

    def restart(self, unacked):
        """What is left after kill -9, nothing of a queue that is not durable.  What was out comes again, as redelivered
        and with one failure more; what lay ready, or was kept, is as it was."""
        self.octets_estimated = True    # see store/recovery.py
        for message in unacked:
            message.redelivered = True
            message.count += 1
        for message in self.kept.values():
            message.count += message.in_vain    # Handed out, and not settled after all.
        self.ready = sorted([*self.ready, *unacked, *self.kept.values()]) if self.durable else []
        if not self.durable:
            self.next_seq = 1
        self.unacked = 0
        self.rings, self.consumers, self.kept, self.died = {}, [], {}, []
        self.active, self.draining = None, False
        self.expired = self.discarded = self.dead_lettered = self.refused = self.limited = self.timed_out = 0
        for message in self.ready:
            message.from_before = message.redelivered


class Consumer:
    def __init__(self, channel, queue, tag, no_ack, priority):
        self.channel, self.queue, self.tag, self.no_ack, self.priority = channel, queue, tag, no_ack, priority
        self.prefetch = channel.prefetch
        self.timeout, self.timeout_closes = queue.rules.timeout, queue.rules.timeout_closes
        self.unacked = 0
        self.closed = False
        # Whether it has shared credit with others: when it got some, and its place in the ring, depend on their queues.
        self.shares_credit = False
        queue.consumers.append(self)
        channel.consumers[tag] = self
        channel.note_sharing()
        queue.choose_active()
        self.credit_again()

    @property
    def has_credit(self):
        channel = self.channel
        if self.closed or channel.connection.paused or not channel.flow:
            return False
        if self.queue.rules.single_active and (self.queue.active is not self or self.queue.draining):
            return False
        if channel.global_prefetch and channel.consumed >= channel.global_prefetch:
            return False
        return self.no_ack or not (self.prefetch and self.unacked >= self.prefetch)


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
        if not self.shares_credit:
            self.queue.next_consumer(leave=True)
        message, tag = self.queue.take(), self.channel.next_tag
        self.channel.next_tag += 1
        self.leave_ring()
        if not self.no_ack:
            self.channel.unacked[tag] = self.queue, message, self, self.queue.clock.now
            self.queue.unacked += 1
            self.unacked += 1
        if self.no_ack or not self.prefetch or self.unacked < self.prefetch:
            self.ring.append(self)
        return message, tag

    def cancel(self):
        self.leave_ring()
        self.closed = True
        self.queue.consumers.remove(self)
        self.queue.choose_active()
        del self.channel.consumers[self.tag]


class Channel:
    made_so_far = 0

    def __init__(self, connection, number):
        Channel.made_so_far += 1
        self.made = Channel.made_so_far
        self.connection, self.number = connection, number
        self.consumers = {}
        self.unacked = {}               # tag: (queue, message, consumer or None, when)
        self.late = set()               # tags that timed out
        self.came_late = 0
        self.next_tag = 1
        self.prefetch = self.global_prefetch = 0
        self.flow = True
        self.confirm = False
        self.published = 0              # since confirm.select
        self.confirmed = 0
        self.refused = set()            # publish numbers to be nacked
        self.unsynced = []              # publish numbers that wait for a sync
        self.snapshot = 0               # published when the sync under way began
        connection.channels[number] = self

    @property
    def consumed(self):
        """Unacked deliveries of its consumers."""
        return sum(consumer is not None for _, _, consumer, _ in self.unacked.values())

    def note_sharing(self):
        if self.global_prefetch and len(self.consumers) > 1:
            for consumer in self.consumers.values():
                consumer.shares_credit = True

    def credit(self):
        self.note_sharing()
        for consumer in self.consumers.values():
            consumer.credit_again()

    def publish(self, queues, message):
        refusing = [queue for queue in queues if queue.refuses()]
        stored = [queue for queue in queues if queue not in refusing and not queue.dropped]
        for queue in stored:
            queue.append(message.copy())
        for queue in refusing:
            queue.refused += 1
            if queue.rules.overflow == REJECT_PUBLISH_DLX:
                queue.died.append(message.obituary("maxlen"))
        if self.confirm:
            self.published += 1
            if refusing:
                self.refused.add(self.published)
            elif message.persistent and any(queue.durable for queue in stored):
                self.unsynced.append(self.published)

    def settle(self, tag, multiple, requeue, reject=False):
        """False: unknown delivery tag."""
        known = {*self.unacked, *self.late}
        if tag == 0:
            if not multiple:
                return False
            tags = sorted(known)
        elif tag not in known:
            return False
        else:
            tags = sorted(one for one in known if one <= tag) if multiple else [tag]
        for one in tags:
            if one in self.late:
                self.late.remove(one)
                self.came_late += 1
            else:
                self.settle_one(one, requeue, reject)
        if tags and self.global_prefetch:
            self.credit()
        return True

    def settle_one(self, tag, requeue, reject=False):
        queue, message, consumer, _ = self.unacked.pop(tag)
        queue.unacked -= 1
        if requeue:
            queue.give_back(message)
        elif reject:
            message.redelivered = True
            queue.kill(message, "rejected")
        if consumer is not None:
            consumer.unacked -= 1
            consumer.credit_again()
            if queue.active is consumer and consumer.unacked == 0 and (consumer.closed or queue.draining):
                queue.choose_active()

    def recover(self):
        if self.unacked or self.late:
            self.settle(0, True, True)

    def return_overdue(self, now):
        """What has been out too long returns; the first consumer whose channel is to be closed instead, or None."""
        any_ = False
        for tag, (queue, _, consumer, when) in sorted(self.unacked.items()):
            if consumer is None or now - when < consumer.timeout:
                continue
            if consumer.timeout_closes:
                return consumer
            queue.timed_out += 1
            self.settle_one(tag, True)
            self.late.add(tag)
            any_ = True
        if any_ and self.global_prefetch:
            self.credit()
        return None

    def get(self, queue, no_ack):
        """(message, tag), or None."""
        queue.expire()
        message = queue.take()
        if message is None:
            return None
        tag = self.next_tag
        self.next_tag += 1
        if not no_ack:
            self.unacked[tag] = queue, message, None, queue.clock.now
            queue.unacked += 1
        return message, tag

    def close(self):
        for consumer in list(self.consumers.values()):
            consumer.cancel()
        self.recover()
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
