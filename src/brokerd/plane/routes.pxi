# Routes remembers where messages go: one route_t for each (exchange, routing key, bits) of a basic.publish.  Where headers
# decide, that one has no targets, and leads to routes by extracts of headers (headers.pxi).  Tally has the counters of an
# exchange.  Neither knows bindings: the control plane's resolve() looks at them.

cdef class Tally:
    """See plane/__init__.pyi."""

    @property
    def published(self):
        return self.t.published

    @property
    def routed(self):
        return self.t.routed


cdef enum:
    ROUTES_MOST = 16384     # routes remembered at most: Routes then forgets all of them, and learns anew

@cython.no_gc_clear
cdef class Routes:
    """See plane/__init__.pyi."""

    def __cinit__(self, Core core, resolve):
        self.core = core
        self.resolve = resolve
        self.answers = []
        self.generation = 1

    def __dealloc__(self):
        self.forget()

    cdef void forget(self):
        cdef uint32_t i
        for i in range(self.slots_n):
            route_free(self.slots[i])
        free(self.slots)
        self.slots = NULL
        self.slots_n = self.used = 0
        route_free(self.once)
        self.once = NULL
        extracts_free(self.extracts)
        self.extracts = NULL

    def clear(self):
        # The publish under way may have caused this call: its dead letter can go to a delayed exchange, which declares
        # a queue then.  That publish still reads its route, so the next look-up frees the routes.  Until then the new
        # generation keeps channels from using a route that they remember.
        self.generation += 1
        self.stale = True

    cdef void renew(self):
        self.stale = False
        self.forget()
        self.answers = []
        self.once_answer = None

    cdef route_t *find(self, const uint8_t *method, uint32_t n, uint32_t hash):
        cdef uint32_t i
        cdef route_t *r
        if self.stale:
            self.renew()
        if self.slots_n == 0:
            return NULL
        i = hash & (self.slots_n - 1)
        while self.slots[i] != NULL:
            r = self.slots[i]
            if r.hash == hash and r.method_n == n and memcmp(r.method, method, n) == 0:
                return r
            i = (i + 1) & (self.slots_n - 1)
        return NULL

    cdef int insert(self, route_t *r) except -1:
        cdef uint32_t i, n
        cdef route_t **slots
        if self.used * 2 >= self.slots_n:
            n = self.slots_n * 2 if self.slots_n else 16
            slots = <route_t **>calloc(n, sizeof(route_t *))
            if slots == NULL:
                raise MemoryError
            for i in range(self.slots_n):
                if self.slots[i] != NULL:
                    put_slot(slots, n, self.slots[i])
            free(self.slots)
            self.slots = slots
            self.slots_n = n
        r.is_common = r.targets_n == 1 and is_simple(r)
        put_slot(self.slots, self.slots_n, r)
        self.used += 1
        return 0

    cdef int learn(self, channel_t *ch, const event_t *e) except -1:
        """Ask resolve() where the publish of event e goes, and remember the answer.  Raises what resolve() raises."""
        cdef const uint8_t *p = e.payload
        cdef uint32_t exchange_n, key_n
        cdef route_t *r
        cdef Answer answer
        if not e.ask and self.extracts != NULL and self.learn_by_bindings(ch, e):
            return 0
        exchange_n = p[6] if e.payload_n > 6 else 255
        if e.payload_n < 9 or 7 + exchange_n >= e.payload_n - 1:
            raise by_reply_code(502, "basic.publish ends before its fields do", hard=True)
        key_n = p[7 + exchange_n]
        if 8 + exchange_n + key_n + 1 != e.payload_n:
            raise by_reply_code(502, "basic.publish is not of the length of its fields", hard=True)
        answer = self.resolve(
            (<const char *>p)[7:7 + exchange_n], (<const char *>p)[8 + exchange_n:8 + exchange_n + key_n],
            (<const char *>e.header)[:e.header_n], <Channel>ch.owner)
        if answer.checks_keys and not are_keys_plain(answer, e.header + 12):
            raise AssertionError("a route that checks keys was found for a key that is not plain")  # Else it is asked for ever.
        if answer.by_headers and not e.ask and self.learn_by_headers(ch, e, answer):
            return 0
        r = self.make_route(p, e.payload_n, answer)
        if answer.cacheable and not e.ask and answer.properties is None:
            self.answers.append(answer)
            self.insert(r)
        else:
            # There is one such route at a time: the new generation keeps other channels from using the former one.
            self.generation += 1
            route_free(self.once)
            self.once = r
            self.once_answer = answer
            r.once = True
        ch.route = r
        ch.route_generation = self.generation
        return 0

    cdef bint learn_by_headers(self, channel_t *ch, const event_t *e, Answer answer) except -1:
        """Remember the answer by what bindings ask of the message's headers.  False: it must not be remembered."""
        cdef route_t *r = self.find(e.payload, e.payload_n, crc_update(0, e.payload, e.payload_n))
        if answer.cacheable or answer.properties is not None:
            return False
        if r == NULL:
            r = self.make_route(e.payload, e.payload_n, Answer(()))
            if self.extracts == NULL:
                self.extracts = <extracts_t *>calloc(1, sizeof(extracts_t))
            r.by_headers = <by_headers_t *>calloc(1, sizeof(by_headers_t))
            if self.extracts == NULL or r.by_headers == NULL:
                route_free(r)
                raise MemoryError
            r.by_headers.extracts = self.extracts
            self.insert(r)
        if r.by_headers == NULL or not self.note_asked(r.by_headers, answer.by_headers):
            return False
        if answer.decided_by is not None and r.by_headers.answer == NULL:
            self.answers.append(answer)
            r.by_headers.answer = <void *>answer
        if not self.remember_extract(r, e, answer):
            return False
        ch.route = r
        ch.route_generation = self.generation
        return True

    cdef bint learn_by_bindings(self, channel_t *ch, const event_t *e) except -1:
        """Find where the publish of event e goes by the bindings of its headers exchange, and remember it.  False: resolve()
        must be asked."""
        cdef route_t *r = self.find(e.payload, e.payload_n, crc_update(0, e.payload, e.payload_n))
        cdef uint8_t extract[EXTRACT_MOST]
        cdef Answer first
        cdef tuple queues
        if r == NULL or r.by_headers == NULL or r.by_headers.answer == NULL:
            return False
        if make_extract(r.by_headers, property_at(e.header + 12, PROPERTY_HEADERS), extract) < 0:
            return False                # It could not be remembered, and would be asked for each time.
        first = <Answer>r.by_headers.answer
        queues = (<HeaderBindings?>first.decided_by).queues(e.header + 12)
        if queues is None or not self.remember_extract(r, e, Answer(queues, tally=first.tally)):
            return False
        ch.route = r
        ch.route_generation = self.generation
        return True

    cdef bint remember_extract(self, route_t *r, const event_t *e, Answer answer) except -1:
        """Remember the answer by the extract of the message's headers, for r, which depends on headers.  False: it is too
        large."""
        cdef uint8_t extract[EXTRACT_MOST]
        cdef way_t *place
        cdef way_t way
        cdef int32_t n
        n = make_extract(r.by_headers, property_at(e.header + 12, PROPERTY_HEADERS), extract)
        if n < 0 or sizeof(route_t) + len(answer.queues) * sizeof(queue_t *) + n > BY_HEADERS_ROOM:
            return False
        if extracts_grow(self.extracts) != 0:
            raise MemoryError
        way.of = r.by_headers
        way.hash = crc_update(r.hash, extract, n)
        way.route = route_new(extract, n, way.hash, answer, r.method[r.method_n - 1])
        place = place_in_set(self.extracts, &way)
        if place.route == NULL:
            way.at = <uint32_t>len(self.answers)
            self.answers.append(answer)
            self.extracts.n += 1
        else:
            way.at = place.at
            self.answers[way.at] = answer
            free(place.route)
        place[0] = way
        return True

    cdef bint note_asked(self, by_headers_t *by, tuple asked) except -1:
        """Let extracts have what these ask as well.  False: there are too many of them."""
        cdef uint32_t i
        cdef Asked one
        for one in asked:
            for i in range(by.asked_n):
                if by.asked[i] == &one.a:
                    break
            else:
                if by.asked_n == ASKED_MOST:
                    return False
                by.asked[by.asked_n] = &one.a
                by.asked_n += 1
                self.answers.append(one)
        return True

    cdef route_t *make_route(self, const uint8_t *method, uint32_t n, Answer answer) except NULL:
        """Make a route, which the caller must insert or free, and make sure that there is room for it."""
        if self.used >= ROUTES_MOST:
            self.clear()
        if self.stale:
            self.renew()            # resolve() may have called clear(): it can change where messages go.
        return route_new(method, n, crc_update(0, method, n), answer, method[n - 1])

    cdef route_t *find_for_letters(self, letters_t *l, const uint8_t *names, uint32_t n) noexcept:
        """The route of dead letters with this exchange and routing key, given as short strings.  NULL: resolve() failed."""
        cdef uint8_t method[2 * SHORTSTR_ROOM + 8]
        cdef route_t *r
        # A route is found by the payload of a basic.publish.  This one sets no bits.
        memset(method, 0, 6)
        memcpy(method + 6, names, n)
        method[6 + n] = 0
        r = self.find(method, n + 7, crc_update(0, method, n + 7))
        if r == NULL:
            r = self.learn_for_letters(method, n + 7)
        l.route = r
        l.generation = self.generation
        return r

    cdef route_t *learn_for_letters(self, const uint8_t *method, uint32_t n) except NULL:
        """Ask resolve() where these dead letters go, and remember the answer.  Raises what resolve() raises."""
        cdef uint32_t exchange_n = method[6]
        cdef uint32_t key_n = method[7 + exchange_n]
        cdef Answer answer = self.resolve((<const char *>method)[7:7 + exchange_n],
                                          (<const char *>method)[8 + exchange_n:8 + exchange_n + key_n], b"", None)
        cdef route_t *r
        r = self.make_route(method, n, answer)
        r.up = not answer.cacheable or len(answer.participants) > 0 or answer.properties is not None
        self.answers.append(answer)
        self.insert(r)
        return r


cdef bint are_keys_plain(Answer answer, const uint8_t *properties):
    """Whether all windows find a plain key, or none, in these properties."""
    cdef uint64_t hash_
    cdef int64_t ttl
    cdef Queue queue
    for queue in answer.queues:
        if queue.q.window != NULL and not find_key(queue.q.window, NULL, properties, &hash_, &ttl):
            return False
    return answer.window is None or find_key(&answer.window.w, NULL, properties, &hash_, &ttl)


cdef inline bint is_simple(route_t *r) noexcept nogil:
    """Whether a publish by this route asks for no more than to be stored."""
    return r.answer == NULL and r.properties == NULL and r.by_headers == NULL and not r.once and not r.up \
        and not r.checks_keys and not r.immediate and (r.targets_n != 0 or not r.mandatory)


cdef void put_slot(route_t **slots, uint32_t n, route_t *r) noexcept nogil:
    cdef uint32_t i = r.hash & (n - 1)
    while slots[i] != NULL:
        i = (i + 1) & (n - 1)
    slots[i] = r


cdef route_t *route_new(const uint8_t *method, uint32_t n, uint32_t hash, Answer answer, uint8_t bits) except NULL:
    cdef size_t count = len(answer.queues)
    cdef route_t *r = <route_t *>malloc(sizeof(route_t) + count * sizeof(queue_t *) + n)
    cdef size_t i
    if r == NULL:
        raise MemoryError
    r.targets = <queue_t **>(r + 1)
    r.method = <uint8_t *>(r.targets + count)
    memcpy(r.method, method, n)
    r.method_n = n
    r.hash = hash
    r.targets_n = <uint32_t>count
    r.mandatory = bits & 1
    r.immediate = bits >> 1 & 1
    r.by_headers = NULL
    r.answer = <void *>answer if answer.participants else NULL
    r.properties = NULL
    r.properties_n = 0
    if answer.properties is not None:
        r.properties = <const uint8_t *>answer.properties
        r.properties_n = <uint32_t>len(answer.properties)
    r.once = r.up = r.is_common = False
    r.delays = answer.delays
    r.checks_keys = answer.checks_keys
    r.learner = &(<ExchangeWindow?>answer.window).l if answer.window is not None else NULL
    r.tally = &answer.tally.t if answer.tally is not None else NULL
    for i in range(count):
        r.targets[i] = &(<Queue?>answer.queues[i]).q
    return r


cdef void route_free(route_t *r) noexcept nogil:
    if r != NULL:
        free(r.by_headers)
    free(r)
