# Commits the publishes that a channel has kept: finds where each message goes, and stores all of them in one pass.

cdef enum:
    KEPT_QUEUES_MOST = 256      # that one transaction may go to; one with more is the session's
    KEPT_KEYS_SEEN = 16         # remembered while a transaction is routed
    KEPT_STORES_MOST = 2000000  # of one transaction; one with more is the session's
    KEPT_AT_ONCE = 64           # messages that are stored, counted once for each queue, before the clock is looked at


@cython.no_gc_clear
cdef class Kept:
    """See plane/__init__.pyi."""

    cdef kept_t *k
    cdef Core core                  # counts the octets of k
    cdef queue_t **targets
    cdef uint32_t *numbers          # of the targets among `queues`
    cdef uint32_t targets_n
    cdef readonly uint32_t stored   # so many messages, from the first one on
    cdef uint32_t placed            # so many targets of the message behind those have it (scatter.pxi) ...
    cdef uint32_t outcome           # ... with this outcome, as store_message() sets it
    cdef readonly list queues
    cdef readonly uint64_t stores
    cdef readonly uint64_t octets
    cdef readonly bint refused

    def __dealloc__(self):
        kept_free(self.k)
        free(self.targets)
        free(self.numbers)

    @property
    def count(self):
        return self.k.count

    def places(self, uint32_t first, uint32_t count):
        cdef uint32_t i, end = <uint32_t>min(<uint64_t>first + count, self.k.count)
        cdef kept_message_t *m
        cdef list found = []
        for i in range(first, end):
            m = self.k.messages + i
            found.append((m.at, 20 + m.names_n + m.properties_n + m.body_n, m.bits))
        return found

    def drop_octets(self):
        kept_drop_octets(self.k)

    cdef void fill(self, message_t *m, uint32_t i) noexcept:
        """The pieces of message i."""
        cdef kept_message_t *kept = self.k.messages + i
        cdef const uint8_t *p = self.k.octets + kept.at
        m.publish_seq = le64(p)
        m.names = p + 8
        m.names_n = kept.names_n
        m.properties = m.names + kept.names_n + 4
        m.properties_n = kept.properties_n
        m.body = m.properties + kept.properties_n + 8
        if self.k.large != NULL:
            m.body = large_body(self.k.large)
        m.body_n = kept.body_n

    cdef inline bint go_together(self, const kept_message_t *m, const kept_message_t *other) noexcept nogil:
        """Whether both have the same exchange, key and bits, so that they go to the same queues."""
        return other != NULL and m.names_n == other.names_n and m.bits == other.bits \
            and memcmp(self.k.octets + m.at + 8, self.k.octets + other.at + 8, m.names_n) == 0

    def route(self, Channel channel):
        cdef Routes routes = channel.connection._routes
        cdef uint32_t i, place
        cdef kept_message_t *m
        cdef kept_message_t *before = NULL
        cdef kept_message_t *seen[KEPT_KEYS_SEEN]
        cdef route_t *r
        cdef dict numbers_of = {}
        cdef dict firsts = {}
        memset(seen, 0, sizeof(seen))
        self.queues = []
        for i in range(self.k.count):
            m = self.k.messages + i
            if not self.go_together(m, before):
                place = crc_update(0, self.k.octets + m.at + 8, m.names_n) % KEPT_KEYS_SEEN
                before = seen[place]
                seen[place] = m
            if self.go_together(m, before):
                m.first = before.first
                m.targets_n = before.targets_n
            else:
                r = self.find(routes, m)
                if r == NULL or not is_simple(r) or not self.add_targets(m, r, numbers_of, firsts):
                    return False
            before = m
            self.octets += m.targets_n * (m.names_n + m.properties_n + m.body_n + <uint64_t>RECORD + 16)
            self.stores += m.targets_n
            if self.stores > KEPT_STORES_MOST:
                return False
        return True

    cdef route_t *find(self, Routes routes, kept_message_t *m) noexcept:
        cdef uint8_t method[2 * SHORTSTR_ROOM + 8]
        put_be32(method, BASIC_PUBLISH)
        put_be16(method + 4, 0)
        memcpy(method + 6, self.k.octets + m.at + 8, m.names_n)
        method[6 + m.names_n] = m.bits
        return routes.find(method, m.names_n + 7, crc_update(0, method, m.names_n + 7))

    cdef bint add_targets(self, kept_message_t *m, route_t *r, dict numbers_of, dict firsts) except -1:
        """Note the targets of r as those of m.  False: the transaction goes to too many queues.  numbers_of: the queues' numbers;
        firsts: where the targets of routes begin."""
        cdef uint32_t i
        cdef size_t n = self.targets_n + r.targets_n
        cdef queue_t **targets
        cdef uint32_t *numbers
        first = firsts.get(<size_t>r)
        m.targets_n = r.targets_n
        if first is not None:
            m.first = first
            return True
        targets = <queue_t **>realloc(self.targets, (n + 1) * sizeof(queue_t *))
        if targets == NULL:
            raise MemoryError
        self.targets = targets
        numbers = <uint32_t *>realloc(self.numbers, (n + 1) * sizeof(uint32_t))
        if numbers == NULL:
            raise MemoryError
        self.numbers = numbers
        m.first = self.targets_n
        firsts[<size_t>r] = m.first
        for i in range(r.targets_n):
            queue = <Queue>r.targets[i].owner
            number = numbers_of.get(queue)
            if number is None:
                number = numbers_of[queue] = len(self.queues)
                self.queues.append(queue)
            targets[m.first + i] = r.targets[i]
            numbers[m.first + i] = number
        self.targets_n = <uint32_t>n
        return len(self.queues) <= KEPT_QUEUES_MOST

    def log_messages(self, size_t begin=0, Py_ssize_t most=-1):
        cdef size_t whole = self.k.n + (self.k.large.size if self.k.large != NULL else 0)
        cdef size_t n = whole - min(begin, whole)
        cdef size_t here
        cdef const uint8_t *body
        if most >= 0:
            n = min(n, <size_t>most)
        here = min(n, self.k.n - min(begin, self.k.n))
        octets = (<const char *>self.k.octets)[begin:begin + here] if here else b""
        if here == n:
            return octets
        body = large_body(self.k.large)
        if body == NULL:
            raise MemoryError
        begin = max(begin, self.k.n) - self.k.n
        return octets + (<const char *>body)[begin:begin + n - here]

    def copy_large(self):
        cdef message_t m
        cdef known_t known
        if self.k.large == NULL:
            return True
        self.fill(&m, 0)
        properties_are_whole(m.properties, m.properties + m.properties_n, &known)
        return large_has_copies(self.k.large, self.targets + self.k.messages.first, self.k.messages.targets_n, known.priority,
                                self.k.large.core.work_ns)

    def log_places(self, uint64_t begin):
        cdef uint32_t i, t, n, count = 0
        cdef kept_message_t *m
        cdef size_t size = 4 + self.k.count * <size_t>12 + self.stores * 4
        cdef uint8_t *octets = <uint8_t *>malloc(size)
        cdef uint8_t *p = octets + 4
        if octets == NULL:
            raise MemoryError
        for i in range(self.k.count):
            m = self.k.messages + i
            n = 0
            for t in range(m.first, m.first + m.targets_n):
                if self.targets[t].durable:
                    put_le32(p + 12 + 4 * n, self.numbers[t])
                    n += 1
            if n:
                put_le64(p, begin + m.at)
                put_le32(p + 8, n)
                p += 12 + 4 * n
                count += 1
        put_le32(octets, count)
        places = (<const char *>octets)[:p - octets]
        free(octets)
        return places

    def put(self, Core core, uint32_t connection, uint16_t channel, *, bint sync, Channel returns=None):
        cdef message_t m
        cdef kept_message_t *kept
        cdef int64_t before_look = KEPT_AT_ONCE
        cdef int err = 0
        cdef int64_t until = NEVER if core.c.work_ns == NEVER else monotonic_ns() + core.c.work_ns
        m.connection = connection
        m.channel = channel
        while self.stored < self.k.count and err == 0:
            if before_look <= 0:
                before_look = KEPT_AT_ONCE
                if is_past(until):
                    break
            kept = self.k.messages + self.stored
            err = self.put_one(core, kept, &m, sync)
            before_look -= 1 + kept.targets_n
            if err or self.placed < kept.targets_n:
                before_look = 0     # Of much the clock is asked after each part.
                continue
            self.refused |= (self.outcome & REFUSED) != 0
            if UNLIKELY(self.outcome & UNADMITTED) and returns is not None:
                return_unadmitted(&returns.c, kept.bits & 1, &m, self.outcome)
            self.stored += 1
            self.placed = 0
            self.outcome = STORED
        write_stages(&core.c)
        if has_unfinished(&core.c) or core.c.dirty != NULL:
            core.request_turn()
        if err:
            raise OSError(err, os_strerror(err))
        return self.stored == self.k.count

    cdef int put_one(self, Core core, kept_message_t *kept, message_t *m, bint sync) noexcept:
        """Store the next message, or a part of its copies where they are much: 0, or the errno.  Fills in m."""
        cdef queue_t **targets = self.targets + kept.first
        cdef known_t known
        cdef uint32_t t, before = self.placed
        cdef int err
        self.fill(m, self.stored)
        properties_are_whole(m.properties, m.properties + m.properties_n, &known)
        complete(m, &known)
        if self.k.large != NULL:
            if m.body == NULL:
                return ENOMEM
            if self.k.large.body_at + m.body_n == HEADER + <uint64_t>m.length:
                m.large = self.k.large
        if m.large == NULL and is_much(kept.targets_n, m):
            err = scatter_some(targets, kept.targets_n, &self.placed, m, sync, &self.outcome)
        else:
            err = store_message(targets, kept.targets_n, m, sync, &self.outcome, NULL)
            if err == 0:
                self.placed = kept.targets_n
        if not sync and m.flags & PERSISTENT and core.c.sync:
            for t in range(before, self.placed):
                if targets[t].durable and not targets[t].dropped:
                    mark_unsynced(store_for(targets[t], m.priority))
        return err
