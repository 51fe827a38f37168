# The classes of the data plane: their structs, and what else they hold.  Included by _plane.pxd.

cdef class Queue
cdef class Channel
cdef class Connection
cdef class Routes

cdef class Core:
    cdef core_t c
    cdef object schedule, request_sync, storage_failed, damaged_upcall, deadline_upcall, lost_upcall
    cdef int64_t deadline_told
    cdef public object clock, monotonic
    cdef bint _blocked, scheduled, in_turn, ended
    cdef object go_on_upcall, calm, yielded, errands
    cdef bint go_on_asked, calm_was_last, going_on
    cdef list waiting, syncing, garbage, sealing, settled_segments, unwritten_keys, unindexed
    cdef readonly uint64_t timeouts         # consumers with deliveries that may time out
    cdef void read_clock(self)
    cdef int64_t uptime(self) except -1
    cdef void request_turn(self)
    cdef void deliver_dirty(self)
    cdef void tell_lost(self)
    cdef Connection next_connection(self)
    cdef void ask_to_go_on(self)
    cdef void ask_for_go_on(self)
    cdef int do_errand(self) except -1
    cdef void send_confirms(self)
    cdef uint8_t *input
    cdef size_t input_room, input_size
    cdef object input_view

cdef class Tally:
    cdef tally_t t

cdef class Message:
    cdef readonly bytes exchange, routing_key, properties, body

cdef class Answer:
    cdef readonly tuple queues, participants, by_headers
    cdef readonly Tally tally
    cdef readonly bytes properties
    cdef readonly bint cacheable, delays, checks_keys
    cdef readonly Keys keys
    cdef readonly Window window
    cdef readonly object decided_by     # HeaderBindings
    cdef Py_ssize_t asked           # of the participants: the others have nothing to do with this message
    cpdef take_body(self, bytes body)
    cpdef tuple before_storing(self)
    cpdef after_storing(self, Message message, channel, tuple stored)

cdef class Routes:
    cdef Core core
    cdef object resolve, once_answer
    cdef list answers
    cdef route_t **slots
    cdef route_t *once
    cdef extracts_t *extracts       # NULL: none
    cdef uint32_t slots_n, used
    cdef uint64_t generation
    cdef bint stale                 # the remembered routes do not count any more, and are still to be freed
    cdef void forget(self)
    cdef void renew(self)
    cdef route_t *find(self, const uint8_t *method, uint32_t n, uint32_t hash)
    cdef int insert(self, route_t *r) except -1
    cdef int learn(self, channel_t *ch, const event_t *e) except -1
    cdef bint learn_by_bindings(self, channel_t *ch, const event_t *e) except -1
    cdef bint learn_by_headers(self, channel_t *ch, const event_t *e, Answer answer) except -1
    cdef bint remember_extract(self, route_t *r, const event_t *e, Answer answer) except -1
    cdef bint note_asked(self, by_headers_t *by, tuple asked) except -1
    cdef route_t *find_for_letters(self, letters_t *l, const uint8_t *names, uint32_t n) noexcept
    cdef route_t *learn_for_letters(self, const uint8_t *method, uint32_t n) except NULL
    cdef route_t *make_route(self, const uint8_t *method, uint32_t n, Answer answer) except NULL

cdef class Letters:
    cdef letters_t l
    cdef readonly Routes routes
    cdef bytes queue, names

cdef class HashKey:
    cdef hash_key_t k

cdef class Window:
    cdef window_t w
    cdef bytes header, group
    cdef HashKey _hash_key
    cdef void set_header(self, bytes header)

cdef class Keys:
    cdef keys_t k
    cdef list owners
    cdef public object on_body
    cdef int fill(self, dict of_queues, uint64_t of_exchange, int64_t ttl_ms) except -1

cdef class Gate:
    cdef gate_t *gate               # in the subclass

cdef class Queue:
    cdef queue_t q
    cdef readonly Core core
    cdef Window _window
    cdef Letters _letters
    cdef Gate _gate
    cdef readonly str directory
    cdef readonly dict consumers    # its keys; in the order in which they came
    cdef void leave_lists(self)

cdef class Consumer:
    cdef consumer_t c
    cdef readonly bytes tag
    cdef readonly Queue queue
    cdef readonly Channel channel
    cdef readonly bint exclusive
    cdef readonly int32_t priority
    cdef readonly dict arguments

cdef class Channel:
    cdef channel_t c
    cdef readonly Connection connection
    cdef readonly dict consumers
    cdef dict cancelled         # consumers that left with unacked deliveries
    cdef void leave_lists(self)

cdef class Connection:
    cdef conn_t c
    cdef Core core
    cdef Routes _routes
    cdef readonly dict channels
    cdef dict _publishes
    cdef object transport
    cdef int stash_more(self, const uint8_t *p, size_t n) except -1
    cdef void drop_stash(self)
    cdef void credit_consumers(self)
    cdef int work(self, uint8_t *p, uint8_t *end) except -1
    cdef int handle(self, int status, event_t *e) except -1
    cdef int end_work(self, uint8_t *p, uint8_t *end, bint turn, bint crowded) except -1
    cdef bint is_held_up(self, int status)
    cdef bint finish_affairs(self)
    cdef void yield_turn(self)
    cdef void wait_for_deliveries(self)
    cdef void count_anew(self)
    cdef void unstuff(self)
    cdef int work_on_stash(self) except -1
    cdef void stall(self, event_t *e)
    cdef void update_reading(self)
    cdef object __weakref__
