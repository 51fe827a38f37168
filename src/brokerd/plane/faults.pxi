# The texts of faults in a client's octets, as RabbitMQ words them.

cdef str quote_octets(bytes octets):
    """The first 16 octets as RabbitMQ shows them: as Erlang writes a binary."""
    first = octets[:16]
    if first and all(32 <= octet < 127 for octet in first):
        shown = '"' + first.decode().replace("\\", "\\\\").replace('"', '\\"') + '"'
    else:
        shown = ",".join(map(str, first))
    return f"{'all octets' if len(octets) <= 16 else 'first 16 octets'} = <<{shown}>>"


cdef str describe_fault(event_t *e):
    text = e.text.decode()
    text = text.replace("%u", str(e.method), 1)
    if "%b" in text:
        text = text.replace("%b", quote_octets((<const char *>e.payload)[:e.payload_n]), 1)
    for number in (e.number, e.limit):
        text = text.replace("%llu", str(number), 1)
    return text
