# What routing answers: where a message goes, and which features take part in its publish.

cdef class Message:
    """See plane/__init__.pyi."""

    def __init__(self, bytes exchange not None, bytes routing_key not None, bytes properties not None,
                 bytes body not None):
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body = body


cdef class Answer:
    """See plane/__init__.pyi."""

    def __init__(self, tuple queues not None, *, Tally tally=None, bint cacheable=False, bytes properties=None,
                 tuple participants not None=(), Keys keys=None, tuple by_headers not None=(), bint delays=False,
                 bint checks_keys=False, Window window=None, decided_by=None):
        self.queues = queues
        self.tally = tally
        self.cacheable = cacheable
        self.properties = properties
        self.participants = participants
        self.keys = keys
        self.by_headers = by_headers
        self.delays = delays
        self.checks_keys = checks_keys
        self.window = window
        self.decided_by = decided_by

    cpdef take_body(self, bytes body):
        if self.keys is not None and self.keys.on_body is not None:
            self.keys.on_body(body)

    cpdef tuple before_storing(self):
        cdef tuple queues = self.queues, left
        self.asked = 0
        for participant in self.participants:
            self.asked += 1
            left = participant.before_storing(queues)
            if left is None:
                return ()
            queues = left
        return queues

    cpdef after_storing(self, Message message, channel, tuple stored):
        for participant in self.participants[:self.asked]:
            participant.after_storing(message, channel, stored)

    @property
    def refuses(self):
        for participant in self.participants[:self.asked]:
            if participant.refuses:
                return True
        return False

    @property
    def counts_as_routed(self):
        for participant in self.participants[:self.asked]:
            if participant.counts_as_routed:
                return True
        return False


cdef int ask_participants(Answer answer, list left) noexcept:
    """Append the queues that the participants leave to `left`.  0, or the errno of an OSError: the publish must wait.  If a
    participant raises anything else, the interpreter reports it (sys.unraisablehook), `left` stays empty, and the message
    goes to all queues of the answer."""
    cdef tuple queues
    try:
        queues = answer.before_storing()
    except OSError as error:
        return error.errno or EIO
    for queue in queues:
        <Queue?>queue
    left.append(queues)
    return 0


cdef void tell_participants(Answer answer, Message message, channel, tuple stored) noexcept:
    """Tell the participants that the message is stored.  If one raises, the interpreter reports it (sys.unraisablehook)."""
    answer.after_storing(message, channel, stored)


cdef tuple pick_stored(tuple queues, const uint8_t *took):
    """The queues that `took` marks.  If all are marked, the tuple itself: no copy."""
    cdef Py_ssize_t i, n = 0
    for i in range(len(queues)):
        n += took[i]
    if n == len(queues):
        return queues
    return tuple([queues[i] for i in range(len(queues)) if took[i]])
