"""Faults of streams: of the indexes beside their segments, and of what they keep for named readers.

Each changes what a reader would believe, under right checksums, or spoils what is never torn by a crash.
"""

from tests.planter import properties
from tests.planter.files_streams import NO_VALUE, SLOT, bits_of_block, bits_of_segment, has_bits
from tests.planter.planting import NotHere, queue

STREAMS = ("events",)
VALUE = "x-stream-filter-value"


def _register(right, places):
    def register(plant):
        return queue(right, queues=STREAMS, places=places, sees=False)(plant)
    return register


# --- readers


def names(view):
    return sorted(slot.name.decode() for slot in view.queue.readers.slots.values())


def slot_of(view, name):
    return next(slot for slot in view.queue.readers.slots.values() if slot.name == name.encode())


def last_of(view):
    return view.order[-1].seq


of_readers = _register("stream", names)


@of_readers
def reader_beyond_the_end(view, name):
    cell = slot_of(view, name).newer()
    cell.numbers = last_of(view) + 2, cell.numbers[1]


@of_readers
def reader_far_beyond_the_end(view, name):
    cell = slot_of(view, name).newer()
    cell.numbers = (1 << 64) - 1, cell.numbers[1]


@of_readers
def reader_with_a_damaged_name(view, name):
    slot_of(view, name).wrong = True


@of_readers
def reader_without_a_whole_offset(view, name):
    for cell in slot_of(view, name).offsets:
        cell.raw = b"\x01" + bytes(15)


@of_readers
def reader_without_a_whole_count(view, name):
    for cell in slot_of(view, name).missed:
        cell.raw = b"\x01" + bytes(23)


@of_readers
def reader_that_missed_more_than_there_was(view, name):
    for cell in slot_of(view, name).missed:
        cell.numbers, cell.raw = (5, 5, 0), b""


@of_readers
def reader_that_missed_what_is_to_come(view, name):
    for cell in slot_of(view, name).missed:
        cell.numbers, cell.raw = (1, last_of(view) + 2, 0), b""


@_register("stream", lambda view: ("it",))
def readers_of_another_format(view, place):
    view.queue.readers.magic = b"BREE"


@_register("stream", lambda view: (SLOT * 2, SLOT * 511))
def readers_cut(view, octets):
    view.queue.readers.length = octets


# --- indexes


def indexed(view):
    return [part.number for part in view.queue.parts if part.index is not None]


of_indexes = _register("stream", indexed)


def index_of(view, number):
    part = next(part for part in view.queue.parts if part.number == number)
    return part, part.index


def blocks(part):
    """(row, records) of each block, by the index as it is."""
    rows = part.index.rows
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        yield row, [record for record in part.records()
                    if row.position <= record.position and (after is None or record.position < after.position)]


def value_in(record):
    return properties.header(record.meta, VALUE)


@of_indexes
def row_leads_to_another_place(view, number):
    index_of(view, number)[1].rows[-1].position += 8


@of_indexes
def row_has_another_number(view, number):
    index_of(view, number)[1].rows[-1].seq += 1


@of_indexes
def row_has_another_time(view, number):
    index_of(view, number)[1].rows[len(index_of(view, number)[1].rows) // 2].ts += 1


@of_indexes
def block_hides_a_value(view, number):
    """A reader with that value would pass the block over."""
    part, _ = index_of(view, number)
    for row, records in blocks(part):
        for value in filter(None, map(value_in, records)):
            bit = bits_of_block(value)[0]
            row.values[bit // 8] &= ~(1 << bit % 8)
            return
    raise NotHere("no message has a value")


@of_indexes
def segment_hides_a_value(view, number):
    part, index = index_of(view, number)
    for value in filter(None, map(value_in, part.records())):
        for bit in bits_of_segment(value):
            index.values[bit // 8] &= ~(1 << bit % 8)
        return
    raise NotHere("no message has a value")


@of_indexes
def block_hides_messages_without_a_value(view, number):
    part, _ = index_of(view, number)
    for row, records in blocks(part):
        if any(value_in(record) is None for record in records):
            row.flags &= ~NO_VALUE
            return
    raise NotHere("all messages have a value")


@of_indexes
def segment_hides_messages_without_a_value(view, number):
    part, index = index_of(view, number)
    if all(value_in(record) is not None for record in part.records()):
        raise NotHere("all messages have a value")
    index.flags &= ~NO_VALUE


@of_indexes
def row_left_out_that_has_another_value(view, number):
    """The block before grows, and does not say that it has the value."""
    part, index = index_of(view, number)
    before = None
    for row, records in blocks(part):
        values = set(filter(None, map(value_in, records)))
        if before is not None and not all(has_bits(before.values, bits_of_block(value)) for value in values):
            index.rows.remove(row)
            return
        before = row
    raise NotHere("all blocks have the same values")


# --- segments


@_register("holes stream damage", lambda view: [part.number for part in view.queue.parts][1:-1])
def segment_in_the_midst_lost(view, number):
    """Retention removes the oldest ones alone."""
    part, _ = index_of(view, number)
    view.queue.parts.remove(part)


@_register("holes stream damage", lambda view: [part.number for part in view.queue.parts][:-1])
def message_in_the_midst_lost(view, number):
    part, _ = index_of(view, number)
    del part.msgs.records[len(part.msgs.records) // 2]


@_register("holes stream damage", lambda view: ("it",))
def last_message_lost_behind_a_reader(view, place):
    """A reader has read on behind it."""
    for name in names(view):
        if slot_of(view, name).newer().numbers[0] == last_of(view) + 1:
            break
    else:
        raise NotHere("no reader is at the end")
    del view.queue.parts[-1].msgs.records[-1]


# --- what is no fault


def torn_offset(view):
    """The newer cell of a reader is torn: a power cut does that, and the reader reads again."""
    slot_of(view, names(view)[0]).newer().raw = b"\x01" + bytes(15)


def torn_count(view):
    cells = slot_of(view, names(view)[0]).missed
    max(cells, key=lambda cell: cell.numbers).raw = b"\x01" + bytes(23)


def torn_index(view):
    """No reader believes it."""
    index_of(view, indexed(view)[0])[1].wrong = True


def index_of_another_segment(view):
    index_of(view, indexed(view)[0])[1].number += 1


def values_that_are_not_there(view):
    """They cost readers time, and hide nothing."""
    for row in index_of(view, indexed(view)[0])[1].rows:
        row.values[:] = b"\xff" * 32
        row.flags = NO_VALUE


def no_index(view):
    for part in view.queue.parts:
        part.index = None


def no_readers(view):
    view.queue.readers = None


HARMLESS = (torn_offset, torn_count, torn_index, index_of_another_segment, values_that_are_not_there, no_index,
            no_readers)
