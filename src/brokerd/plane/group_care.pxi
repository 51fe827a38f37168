# The Groups object: questions of the control plane about a queue's groups, and its changes of one of them.

GROUP_STATES = {"paused": GROUP_PAUSED, "parked": GROUP_PARKED, "retrying": GROUP_RETRYING}
GROUP_PLACES = {"header": GROUP_BY_HEADER, "routing-key": GROUP_BY_ROUTING_KEY, "correlation-id": GROUP_BY_CORRELATION_ID,
                "type": GROUP_BY_TYPE, "user-id": GROUP_BY_USER_ID, "app-id": GROUP_BY_APP_ID}
GROUP_KEYLESS = {"free": KEYLESS_FREE, "single": KEYLESS_SINGLE, "reject": KEYLESS_REJECT}


cdef dict describe_group(groups_t *gs, uint32_t number):
    """What is known of a group; see Groups.groups()."""
    cdef group_t *g = group_at(&gs.pool, number)
    cdef place_t t
    cdef dict found = {
        "key": (<const char *>key_of_group(g))[:g.key_n], "waiting": g.waiting, "unacked": g.inflight, "token": g.token,
        "states": [name for name, bit in GROUP_STATES.items() if g.state & bit],
        "owner": None, "first_seq": 0, "first_ts": 0, "failed": 0, "until": g.until if g.state & GROUP_RETRYING else 0,
        "turn": g.in_turns > IDLE_TURNS + 1, "at_limit": False,
    }
    if g.owner and gs.owners[g.owner].c != NULL:
        found["owner"] = <Consumer>gs.owners[g.owner].c.owner
    if g.first and seg_map(segment_of_node(node_at(&gs.pool, g.first))) == 0:
        place_of_node(node_at(&gs.pool, g.first), &t)
        found["first_seq"] = t.seq
        found["first_ts"] = <int64_t>le64(t.seg.map + t.position + R_TS)
        found["failed"] = t.count
        found["at_limit"] = gs.gate.queue != NULL and gs.gate.queue.rules != NULL and is_at_stop(gs.gate.queue.rules, &t)
    return found


cdef list parked_positions(seg_t *s):
    """Where records of a segment stand whose last entry says that they are parked.  The acks are mapped."""
    cdef set found = set()
    cdef uint64_t entry
    cdef uint32_t i
    cdef uint8_t kind
    for i in range(s.entries):
        entry = le64(s.acks + HEADER + ENTRY * i)
        kind = entry >> 32 & 15
        if kind == PARKED:
            if entry_is_sound(s, entry):
                found.add(<uint32_t>entry)
        elif found and kind != RETRY_TIME and entry_is_sound(s, entry):
            found.discard(<uint32_t>entry)
    return sorted(found)


def parked_in_segment(Queue queue not None, uint64_t number, uint8_t level=0):
    """See plane/__init__.pyi."""
    cdef seg_t *s = segment_at(&queue.q, level, number)
    cdef bint was_mapped
    cdef list found = []
    cdef uint32_t position
    if s == NULL or s.entries == 0 or s.unlinked:
        return found
    was_mapped = s.acks != NULL
    if acks_map(s) == 0 and seg_map(s) == 0:
        for position in parked_positions(s):
            if le32(s.map + position) == RECORD_MAGIC:
                found.append(seq_of(s.map + position))
    if not was_mapped and s != s.store.cursor and s != s.store.last:
        acks_unmap(s)
    return found


cdef class Groups(Gate):
    """See plane/__init__.pyi."""

    cdef groups_t g
    cdef tuple names

    def __cinit__(self, *, bint sticky, str by, tuple names=(), str keyless="free", uint32_t most=1, int64_t idle_ms=60000,
                  uint8_t max_priority=0, uint32_t waiting_most=4 << 20):
        cdef int i
        if len(names) > GROUP_NAMES_MOST or any([not 0 < len(name) < 256 for name in names]) or most == 0:
            raise ValueError("1 to 4 names of headers, of 1 to 255 octets, and 1 message or more")
        gate_init(&self.g.gate)
        self.names = names
        self.g.rule.by = GROUP_PLACES[by]
        self.g.rule.names_n = <uint8_t>len(names)
        for i in range(len(names)):
            self.g.rule.names[i] = <const uint8_t *><bytes>names[i]
            self.g.rule.name_n[i] = <uint8_t>len(names[i])
        self.g.mode = STICKY if sticky else EXCLUSIVE
        self.g.keyless = GROUP_KEYLESS[keyless]
        self.g.most = most
        self.g.waiting_most = waiting_most
        self.g.idle = idle_ms * 1000000
        self.g.levels = max_priority + 1
        self.g.owners_capacity = 4
        self.g.owners_n = 1
        self.g.owners = <owner_t *>calloc(self.g.owners_capacity, sizeof(owner_t))
        self.g.turns = <turns_t *>calloc(SHARED_TURNS + self.g.owners_capacity * self.g.levels, sizeof(turns_t))
        if self.g.owners == NULL or self.g.turns == NULL:
            raise MemoryError
        self.g.gate.attach = groups_attach
        self.g.gate.detach = groups_detach
        self.g.gate.take = groups_take
        self.g.gate.dying = groups_dying
        self.g.gate.settle = groups_settle
        self.g.gate.give_back = groups_give_back
        self.g.gate.admits = groups_admits
        self.g.gate.headers = groups_headers
        self.g.gate.letter = groups_letter
        self.g.gate.part_with = groups_part_with
        self.g.gate.replayed = groups_replayed
        self.g.gate.drop = groups_drop
        self.g.gate.purge = groups_purge
        self.g.gate.drops = True
        self.g.gate.due = groups_due
        self.g.gate.join = groups_join
        self.g.gate.leave = groups_leave
        self.g.gate.visit = groups_visit
        self.g.gate.empty = groups_empty
        self.g.gate.is_sound = groups_is_sound
        self.g.retry.least = self.g.retry.most = 1
        self.gate = &self.g.gate

    def __dealloc__(self):
        dues_free(&self.g.retry.due)
        dues_free(&self.g.oldest)
        pool_clear(&self.g.pool)
        free(self.g.owners)
        free(self.g.turns)
        free(self.g.deaths)

    def set_rule(self, *, uint8_t causes=0, int64_t min_ms=1, int64_t max_ms=1, uint8_t backoff=LINEAR):
        self.g.retry.causes = causes
        self.g.retry.least = max(min_ms, <int64_t>1)
        self.g.retry.most = max(max_ms, self.g.retry.least)
        self.g.retry.backoff = backoff
        if causes == 0 and self.g.gate.queue != NULL and self.g.retry.due.n:
            hasten_retries(&self.g, self.g.gate.queue.core.now // 1000000)
            groups_alarm(&self.g, 0)

    # ---- figures

    def __len__(self):
        return self.g.pool.live

    @property
    def waiting(self):
        return self.g.gate.waiting

    @property
    def waits(self):
        return self.g.waits

    @property
    def waited_ns(self):
        if self.g.gate.queue != NULL:
            count_wait_time(&self.g)
        return self.g.waited_ns

    @property
    def fenced(self):
        return self.g.gate.fenced

    @property
    def refused(self):
        return self.g.refused

    @property
    def octets(self):
        cdef size_t chunks = (self.g.pool.groups_n + GROUP_CHUNK - 1) // GROUP_CHUNK
        cdef size_t of_nodes = (self.g.pool.nodes_n + GROUP_CHUNK - 1) // GROUP_CHUNK
        return (chunks * GROUP_CHUNK * sizeof(group_t) + of_nodes * GROUP_CHUNK * sizeof(node_t)
                + (self.g.pool.mask + 1 if self.g.pool.slots != NULL else 0) * sizeof(uint64_t))

    # ---- groups

    def scan(self, uint32_t most):
        cdef queue_t *q = self.g.gate.queue
        cdef bint whole
        if q == NULL:
            return True
        write_stages(q.core)
        whole = scan_some(&self.g, most, <uint64_t>NEVER)
        (<Queue>q.owner).core.request_turn()
        return whole

    def groups(self, uint32_t start, uint32_t count):
        cdef list found = []
        cdef uint32_t number = max(start, <uint32_t>1)
        while number < self.g.pool.groups_n and count:
            if group_at(&self.g.pool, number).state & (GROUP_KNOWN | GROUP_FREE) == GROUP_KNOWN:
                found.append(describe_group(&self.g, number))
            number += 1
            count -= 1
        return found, number if number < self.g.pool.groups_n else 0

    cdef uint32_t number_of(self, bytes key):
        cdef const uint8_t *octets = <const uint8_t *>key
        if len(key) > GROUP_KEY_MOST:
            return 0
        return group_find(&self.g.pool, octets, <uint32_t>len(key), hash_group_key(octets, len(key)))

    def find(self, bytes key not None):
        cdef uint32_t number = self.number_of(key)
        return describe_group(&self.g, number) if number else None

    def messages(self, bytes key not None, uint64_t after, uint32_t count):
        cdef list found = []
        cdef uint32_t number = self.number_of(key), at = group_at(&self.g.pool, number).first if number else 0
        cdef node_t *node
        cdef place_t t
        while at and count:
            node = node_at(&self.g.pool, at)
            if number_of_node(node) > after and seg_map(segment_of_node(node)) == 0:
                place_of_node(node, &t)
                found.append((number_of_node(node), t.count, make_row(t.seg, t.position, t.flags & PLACE_WAS_OUT != 0)))
                count -= 1
            at = node.next
        return found

    def key_of(self, bytes routing_key not None, bytes properties not None):
        cdef bytes names = b"\0" + bytes([len(routing_key)]) + routing_key
        cdef message_t m
        cdef group_key_t key
        cdef known_t known
        m.names = <const uint8_t *>names
        m.names_n = <uint32_t>len(names)
        m.properties = <const uint8_t *>properties
        m.properties_n = <uint32_t>len(properties)
        if not properties_are_whole(m.properties, m.properties + m.properties_n, &known):
            raise ValueError("malformed properties")
        find_group_key(&self.g.rule, &m, &key)
        if key.at == NULL:
            return b"" if self.g.keyless == KEYLESS_SINGLE else None
        return (<const char *>key.at)[:key.n]

    def unlist(self, uint32_t most):
        cdef queue_t *q = self.g.gate.queue
        if q == NULL:
            return True
        write_stages(q.core)
        return unlist_some(&self.g, most)

    # ---- messages that go to their places before they are looked at

    def put_back(self, uint64_t seq):
        cdef queue_t *q = self.g.gate.queue
        cdef store_t *st = NULL
        cdef place_t t
        cdef bint is_aside, was_seen = False
        cdef uint32_t returned_n
        if q == NULL:
            return False
        write_stages(q.core)
        is_aside = aside_take(q, seq, &t)
        if is_aside and t.reason != ASIDE_HELD:
            aside_put(q, &t)            # There is room: it was in there.
            return False
        while not is_aside:
            st = next_store(q, st)
            if st == NULL:
                return False
            returned_n = st.returned_n
            if st.ready and take_out(st, seq, &t):
                uncount_octets(q, t.seg.map + t.position)
                was_seen = st.returned_n < returned_n
                break
        if not self.list_taken(&t, is_aside, was_seen):
            if is_aside:
                aside_put(q, &t)
            else:
                make_ready(&t)
            raise MemoryError
        (<Queue>q.owner).core.request_turn()
        return True

    cdef bint list_taken(self, place_t *t, bint is_aside, bint was_seen) except -1:
        """Let a message wait in its group that was taken.  was_seen: it has returned, or another gate let it wait, since the
        start: what was on disk then counts no more.  False: no memory, or its file cannot be read."""
        cdef groups_t *gs = &self.g
        cdef queue_t *q = gs.gate.queue
        cdef uint32_t number = 0
        cdef bint closes
        cdef int64_t when = 0
        if not is_aside and t.flags & (PLACE_WAS_OUT | PLACE_OUT_SINCE_START) == PLACE_WAS_OUT and q.rules != NULL \
                and is_at_delivery_limit(q.rules, t):
            kill(t, REASON_LIMIT)       # The former broker ended while it was out.
            return True
        if seg_map(t.seg) != 0 or find_group(gs, t, &number, &closes) != 0:
            return False
        if number == 0 or group_at(&gs.pool, number).state & GROUP_FREE:
            if not is_aside:
                return make_ready(t) == 0
            if return_from_aside(t) != 0:
                return False
            apply_rules_on_return(t)
            mark_dirty(q)
            return True
        if was_redriven(t.seg.map + t.position):
            gs.redriven = gs.disordered = True
            gs.look_upto = max(gs.look_upto, number_in_group(t.seg.map + t.position))
        if not was_seen:
            when = stops_of(gs, t.seg.store, t)
        if let_taken_wait(gs, number, t, when != 0, is_aside) != 0:
            settle_turn(gs, number)
            return False
        if when:
            wait_for_retry(gs, number, when)
        if is_aside and was_redriven(t.seg.map + t.position) and q.journal != NULL:
            tell_of_group(q, t, REDRIVEN_EVENT, 0)
        settle_turn(gs, number)
        return True

    # ---- what an operator does

    def pause(self, bytes key not None):
        cdef uint32_t number = self.number_of(key)
        if number == 0:
            if len(key) > GROUP_KEY_MOST:
                raise ValueError("no group has so long a key")
            number = group_new(&self.g.pool, <const uint8_t *>key, <uint32_t>len(key),
                               hash_group_key(<const uint8_t *>key, len(key)))
            if number == 0:
                raise MemoryError
        group_at(&self.g.pool, number).state |= GROUP_PAUSED
        settle_turn(&self.g, number)

    def resume(self, bytes key not None):
        return self.clear(key, GROUP_PAUSED)

    def park(self, bytes key not None):
        cdef uint32_t number = self.number_of(key)
        cdef group_t *g
        cdef place_t t
        if number == 0 or group_at(&self.g.pool, number).first == 0:
            return False
        g = group_at(&self.g.pool, number)
        if not park_first(&self.g, number):
            raise MemoryError
        if not g.state & GROUP_PARKED:
            g.state |= GROUP_PARKED
            place_of_node(node_at(&self.g.pool, g.first), &t)
            tell_of_group(self.g.gate.queue, &t, GROUP_PARKED_EVENT, REASON_REMOVED)
        settle_turn(&self.g, number)
        return True

    def release(self, bytes key not None):
        cdef uint32_t number = self.number_of(key)
        cdef group_t *g
        cdef place_t t
        if number == 0:
            return False
        if not unpark(&self.g, number):
            raise MemoryError
        g = group_at(&self.g.pool, number)
        if g.state & (GROUP_PARKED | GROUP_RETRYING) and g.first and seg_map(segment_of_node(node_at(&self.g.pool, g.first))) == 0:
            place_of_node(node_at(&self.g.pool, g.first), &t)
            tell_of_group(self.g.gate.queue, &t, GROUP_RELEASED_EVENT, 0)
        if g.state & GROUP_RETRYING:
            due_remove(&self.g.retry.due, number)
        return self.clear(key, GROUP_PAUSED | GROUP_PARKED | GROUP_RETRYING)

    cdef bint clear(self, bytes key, uint16_t states) except -1:
        cdef uint32_t number = self.number_of(key)
        cdef group_t *g
        if number == 0:
            return False
        g = group_at(&self.g.pool, number)
        if not g.state & states:
            return False
        g.state &= ~states
        settle_turn(&self.g, number)
        if self.g.gate.queue != NULL:
            (<Queue>self.g.gate.queue.owner).core.request_turn()
        return True

    def skip(self, bytes key not None):
        cdef uint32_t number = self.number_of(key)
        cdef uint64_t seq
        if number == 0 or group_at(&self.g.pool, number).inflight:
            return 0
        seq = drop_first(&self.g, number, DROPPED | REASON_REMOVED << 4)
        settle_turn(&self.g, number)
        (<Queue>self.g.gate.queue.owner).core.request_turn()
        return seq

    def purge(self, bytes key not None, uint32_t most):
        cdef uint32_t number = self.number_of(key), n = 0
        while number and n < most and drop_first(&self.g, number, PURGED):
            n += 1
        return n
