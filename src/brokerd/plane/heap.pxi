# The heap of a store's returned records.  The lowest sequence number is on top, so that they go out in the order in which
# they were stored.


cdef int heap_reserve(store_t *st) noexcept nogil:
    """Have room for one more.  0 or ENOMEM."""
    cdef uint32_t i
    cdef place_t *h
    if st.returned_n == st.returned_capacity:
        i = st.returned_capacity * 2 if st.returned_capacity else 16
        h = <place_t *>realloc(st.returned, i * sizeof(place_t))
        if h == NULL:
            return ENOMEM
        st.returned = h
        st.returned_capacity = i
    return 0


cdef int heap_push(store_t *st, place_t *t) noexcept nogil:
    cdef uint32_t i, parent
    cdef place_t *h
    if heap_reserve(st) != 0:
        return ENOMEM
    h = st.returned
    i = st.returned_n
    st.returned_n += 1
    while i:
        parent = (i - 1) >> 1
        if h[parent].seq <= t.seq:
            break
        h[i] = h[parent]
        i = parent
    h[i] = t[0]
    return 0


cdef void heap_pop(store_t *st) noexcept nogil:
    cdef place_t *h = st.returned
    cdef place_t last
    cdef uint32_t i = 0, child, n
    st.returned_n -= 1
    n = st.returned_n
    if n == 0:
        free(h)
        st.returned = NULL
        st.returned_capacity = 0
        return
    last = h[n]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and h[child + 1].seq < h[child].seq:
            child += 1
        if last.seq <= h[child].seq:
            break
        h[i] = h[child]
        i = child
    h[i] = last
