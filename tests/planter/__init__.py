"""A planter of faults that shares no assumption with the audit: written from docs/formats.md, docs/ordering.md and
docs/prove.md alone.  It imports nothing of brokerd.

    crc.py      CRC32C
    files.py    msgs, acks and journals: octets -> objects -> octets
    folder.py   queues, dumps and data directories: read, changed, written again
    samples.py  real brokers with real clients, whose files are planted with faults
    model.py    the promises, judged once more: what a fault must break to be one
    play*.py    what happened in a queue, played in its order, for the model
    kinds*.py   the kinds of faults, and the places at which they are planted
    edits.py    random edits with corrected checksums

Only the tests call the audit.
"""
