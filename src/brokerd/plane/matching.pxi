# Finds where a message goes by the bindings of a headers exchange, for headers that are not remembered.
#
# exchanges/headers.py has the rules and keeps the tables; this file reads them.  Their keys are octets: a name as a short string,
# and plain values (headers.pxi).  Compound values (tables, arrays, decimals) have no plain octets that two equal ones share,
# so the control plane makes octets for them.

@cython.final
cdef class Shape:
    """See plane/__init__.pyi."""

    cdef readonly tuple valued, there
    cdef readonly bytes anchor
    cdef readonly dict by_values

    def __init__(self, tuple valued not None, tuple there not None, bytes anchor not None):
        self.valued = valued
        self.there = there
        self.anchor = anchor
        self.by_values = {}

    cdef object find(self, dict values):
        """The destinations of the bindings that agree with these values by name; None: no binding does."""
        cdef bytes name
        cdef bytes value
        cdef list parts
        for name in self.there:
            if name not in values:
                return None
        if len(self.valued) == 1:
            value = values.get(self.valued[0])
            return None if value is None else self.by_values.get(value)
        parts = []
        for name in self.valued:
            value = values.get(name)
            if value is None:
                return None
            parts.append(value)
        return self.by_values.get(b"".join(parts))


cdef int list_destinations(list found, destinations) except -1:
    """Append each of the destinations, which have one of the forms of exchanges/destinations_of_key.py."""
    if destinations is None:
        return 0
    if type(destinations) is dict:
        found.extend(<dict>destinations)
    else:
        found.append(destinations)
    return 0


@cython.final
cdef class HeaderBindings(Asked):
    """See plane/__init__.pyi."""

    cdef public object always
    cdef readonly dict by_condition, shapes_of
    cdef object compound

    def __init__(self, compound):
        self.compound = compound
        self.by_condition = {}
        self.shapes_of = {}

    cdef dict read(self, const uint8_t *table, bint all_names):
        """Read the plain values by name from a whole table.  all_names False: skip names that no binding asks for."""
        cdef const uint8_t *p = table + 4
        cdef const uint8_t *end = p + be32(table)
        cdef const uint8_t *name
        cdef const uint8_t *value
        cdef uint8_t room[9]
        cdef size_t n, name_n
        cdef dict values = {}
        cdef bytes key
        while p < end:
            name = p
            name_n = 1 + name[0]
            p += name_n
            n = value_length(p, end)
            value = p
            p += n
            if not all_names and not is_in_asked(&self.a, crc_update(0, name, name_n) | 1):
                continue
            key = (<const char *>name)[:name_n]
            if key in values:
                continue                # Of two the first one counts, as in a decoded table.
            if is_compound(value[0]):
                values[key] = <bytes?>self.compound((<const char *>value)[:n])
            else:
                value = compared_value(value, room, &n)
                values[key] = (<const char *>value)[:n]
        return values

    cdef list find_in(self, const uint8_t *table):
        """find() in a whole table; NULL: the message has none."""
        cdef list found = []
        cdef dict values
        cdef Shape shape
        list_destinations(found, self.always)
        if table == NULL:
            return found
        values = self.read(table, False)
        if self.by_condition:
            for name, value in values.items():
                list_destinations(found, self.by_condition.get(name))
                list_destinations(found, self.by_condition.get(<bytes>name + <bytes>value))
        if self.shapes_of:
            for name in values:
                for shape in self.shapes_of.get(name, ()):
                    list_destinations(found, shape.find(values))
        return found

    def values(self, const uint8_t[::1] table):
        return self.read(whole_table(table), True)

    def find(self, const uint8_t[::1] table):
        return self.find_in(whole_table(table))

    cdef tuple queues(self, const uint8_t *properties):
        """The queues that a message with these whole properties goes to, each once.  None: the control plane must say,
        because no queue is bound for it, or an exchange is, or a queue that looks for duplicates."""
        cdef dict found = {}
        for destination in self.find_in(property_at(properties, PROPERTY_HEADERS)):
            if not isinstance(destination, Queue) or (<Queue>destination).q.window != NULL:
                return None
            found[destination] = None
        return tuple(found) if found else None
