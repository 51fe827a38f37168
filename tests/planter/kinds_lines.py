"""Faults of the lines of order.jsonl: changed, cut, doubled, left out.  Numbers are not made right again; checksums
are, but where a kind says otherwise."""

from tests.planter.planting import queue

EVERYWHERE = ("plain", "levels", "limited", "single", "aged")


def lines(view):
    """Numbers of lines: not the last one, behind which nothing follows."""
    count = len(view.queue.lines)
    return sorted({0, count // 2, max(count - 2, 0)})


def _line_kind(plant):
    return queue("damage", queues=EVERYWHERE, places=lines, counted=False, sees=False)(plant)


@_line_kind
def line_left_out(view, index):
    del view.queue.lines[index]


@_line_kind
def line_doubled(view, index):
    view.queue.lines.insert(index, dict(view.queue.lines[index]))


@_line_kind
def line_changes_places_with_the_next(view, index):
    found = view.queue.lines
    found[index], found[index + 1] = found[index + 1], found[index]


@_line_kind
def line_changed_under_its_checksum(view, index):
    line = view.queue.lines[index]
    line["crc"] = 1
    line["at"] += 1


@_line_kind
def line_without_its_checksum(view, index):
    """It looks like one of an older broker."""
    del view.queue.lines[index]["line"]


@_line_kind
def line_cut(view, index):
    view.queue.lines[index]["raw"] = b'{"at":1700000000000000000,"what":"cons'


@_line_kind
def line_emptied(view, index):
    view.queue.lines[index]["raw"] = b""


@_line_kind
def line_of_another_number(view, index):
    """Its checksum is right for that."""
    view.queue.lines[index]["line"] += 1000


@queue("damage", queues=EVERYWHERE, sees=False)
def last_line_cut_off_under_its_digest(view, place):
    """No line tells; the digest in the manifest does."""
    del view.queue.lines[-1]
    view.tree.repairs_digests = False


@queue("damage", queues=EVERYWHERE, sees=False)
def line_changed_under_its_digest(view, place):
    """The line's checksum is right."""
    view.queue.lines[0]["at"] += 1
    view.tree.repairs_digests = False


@queue("damage", queues=EVERYWHERE, counted=False, sees=False)
def first_lines_left_out(view, place):
    """All but the last settings, as if the file had begun with them."""
    found = view.queue.lines
    last = max(index for index, line in enumerate(found) if line["what"] == "settings")
    del found[:max(last, 1)]
