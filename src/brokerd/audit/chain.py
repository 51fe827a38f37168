"""Verifies the hash chains of order journals: whether events and acks are those that the broker wrote.

``read`` follows the chain of one segment.  ``judge`` joins those of a queue, and compares them with the heads that the
manifest of a dump names, or a log of heads that was kept elsewhere (``read_log``).  A chain by itself shows what was
changed by somebody who did not make the chain anew; the heads show that too.

A chain covers what was on disk when its last link was made, so as a rule it is shorter than a journal in use, and says
nothing about the rest.  A journal without a chain is no fault: an older broker wrote it, or one without syncs.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from brokerd.audit import AuditError, many
from brokerd.audit.files import QueueFiles, Source, Triple, reason
from brokerd.store import format as layout
from brokerd.store import reading

DIGEST = 32                             # octets
SEALED = (1 << 63) - 1                  # ``synced`` of a journal that is complete
WORDS = {layout.OF_EVENTS: "events", layout.OF_ENTRIES: "entries"}
UNITS = {layout.OF_EVENTS: layout.EVENT_OCTETS, layout.OF_ENTRIES: layout.ENTRY_OCTETS}


class Fault(NamedTuple):
    """Something that contradicts a chain.  ``offset`` is in ``file``, -1: the whole file; ``seq`` and ``ts`` are of the
    first event that is concerned, or 0."""

    file: str
    offset: int
    seq: int
    ts: int
    detail: str


class Chained(NamedTuple):
    """The chain of one segment; small and picklable.

    ``begun``: the journal's, ns.  ``digests``: of all links, 32 octets each.  ``events``: how many the journal counts,
    ``covered``: how many of them the chain covers, ``complete``: it has its last link.  ``made``: when that was, ns.
    ``sealed``: the journal is complete.  ``doubt``: why not all of the chain could be judged; "": nothing.
    """

    triple: Triple
    begun: int = 0
    digests: bytes = b""
    events: int = 0
    covered: int = 0
    complete: bool = False
    made: int = 0
    sealed: bool = False
    faults: tuple[Fault, ...] = ()
    doubt: str = ""

    @property
    def blocks(self) -> int:
        """How many links the chain has."""
        return len(self.digests) // DIGEST

    def head(self, blocks: int) -> str:
        """The digest that so many links lead to, in hex."""
        return self.digests[(blocks - 1) * DIGEST:blocks * DIGEST].hex()


class Head(NamedTuple):
    """One line of a log of heads, or one chain in a manifest (``begun`` 0, ``file`` instead of level and segment)."""

    vhost: str
    queue: str
    level: int
    segment: int
    begun: int
    at: int
    blocks: int
    head: str
    file: str = ""


class Verdict(NamedTuple):
    """The result for one queue.  ``covered`` of ``events`` are covered by chains."""

    faults: list[tuple[Triple | None, Fault]]
    events: int
    covered: int
    doubts: list[str]

    @property
    def reason(self) -> str:
        """The events that the chains cover, in words."""
        if not self.events:
            return "nothing to judge"
        if not self.covered:
            return f"nothing to judge: no chain covers the {many(self.events, 'event')}"
        return f"covers {self.covered} of {many(self.events, 'event')}" if self.covered < self.events else ""


def read(source: Source, triple: Triple) -> Chained:
    """Follow the chain of one segment.  Files that vanish meanwhile have no faults."""
    octets = _octets(source, triple.chain)              # First: what it covers was written before it.
    journal = _octets(source, triple.journal, -1 if octets else layout.HEADER_OCTETS)
    if isinstance(octets, str) or isinstance(journal, str):
        return Chained(triple, doubt=octets if isinstance(octets, str) else str(journal))
    octets = octets or b""
    if not journal:
        if octets and triple.journal is None:
            return Chained(triple, faults=(Fault(triple.chain or "", -1, 0, 0, "its journal is missing"),))
        return Chained(triple)
    begun, events, sealed = _facts_of(journal, whole=bool(octets))
    known = Chained(triple, begun, events=events, sealed=sealed)
    if not any(octets[:layout.HEADER_OCTETS]):
        return known                                    # It is missing, or was made when power was lost.
    try:
        chain = reading.read_chain(octets, triple.number)
    except ValueError as error:
        return known._replace(doubt=f"{triple.chain} {error}")
    if chain is None:
        return known._replace(doubt=f"the header of {triple.chain} is damaged")
    if chain.begun != begun:
        fault = Fault(triple.journal or "", 16, 0, 0, "is not the journal that its chain was made for: it began at "
                      f"{begun} ns, and that one at {chain.begun} ns")
        return known._replace(faults=(fault,), digests=b"".join(link.digest for link in chain.links))
    return _followed(source, known, chain, journal)


def _octets(source: Source, path: str | None, most: int = -1) -> bytes | str | None:
    """The file, or its first ``most`` octets; None if it is missing, a text if it cannot be read."""
    if path is None:
        return None
    try:
        return source.read(path, 0, most)
    except FileNotFoundError:
        return None                                     # The broker has moved or removed it.
    except OSError as error:
        return f"{path}: {reason(error)}"


def _facts_of(journal: bytes, *, whole: bool) -> tuple[int, int, bool]:
    """When a journal began (ns), how many events it counts, whether it is complete.  ``whole`` False: this is
    its header alone."""
    if len(journal) < layout.HEADER_OCTETS:
        return 0, 0, False
    begun = layout.JOURNAL_FIXED.unpack_from(journal)[3]
    count, complement = (int.from_bytes(journal[at:at + 4], "little") for at in (32, 36))
    most = (len(journal) - layout.HEADER_OCTETS) // layout.EVENT_OCTETS
    synced = int.from_bytes(journal[48:56], "little", signed=True)
    counts = layout.word_ok(count, complement) and (count <= most or not whole)
    return begun, count if counts else most, synced == SEALED


def _followed(source: Source, known: Chained, chain: reading.Chain, journal: bytes) -> Chained:
    """Follow the links, and compare each with its block."""
    triple, faults = known.triple, []
    files: dict[int, tuple[str, bytes | None]] = {layout.OF_EVENTS: (triple.journal or "", journal)}
    if any(link.of == layout.OF_ENTRIES for link in chain.links):
        acks = _octets(source, triple.acks)
        if isinstance(acks, str):
            return known._replace(doubt=acks)
        if triple.acks is None:
            faults.append(Fault(triple.chain or "", -1, 0, 0, "its acks file is missing"))
        files[layout.OF_ENTRIES] = (triple.acks or "", acks)
    ends = {layout.OF_EVENTS: layout.HEADER_OCTETS, layout.OF_ENTRIES: layout.HEADER_OCTETS}
    complete: set[int] = set()
    before, covered = chain.start, 0
    for number, link in enumerate(chain.links, 1):
        path, octets = files.get(link.of, ("", None))
        if link.of not in files or link.at != ends[link.of] or link.of in complete:
            place = layout.HEADER_OCTETS + (number - 1) * layout.LINK_OCTETS
            detail = f"link {number} does not go on where those before it end"
            faults.append(Fault(triple.chain or "", place, 0, link.ts, detail))
            break
        block = octets[link.at:link.at + link.octets] if octets is not None else b""
        if octets is not None and (
                len(block) < link.octets or reading.sha256(before, link.head, block) != link.digest):
            faults.append(_fault_at(link, path, block))
        elif link.of == layout.OF_EVENTS:
            covered += link.octets
        before = link.digest
        ends[link.of] += link.octets
        if link.last:
            complete.add(link.of)
    for of in complete & files.keys():
        path, octets = files[of]
        if octets is not None and any(octets[ends[of]:]):
            faults.append(Fault(path, ends[of], 0, 0, f"has {WORDS[of]} behind those that its chain says are the last"))
    return known._replace(
        digests=b"".join(link.digest for link in chain.links), covered=covered // layout.EVENT_OCTETS,
        complete=layout.OF_EVENTS in complete, made=chain.links[-1].ts if chain.links else 0, faults=tuple(faults),
        doubt=f"{triple.chain} is damaged behind link {len(chain.links)}" if chain.unsound else "")


def _fault_at(link: reading.Link, path: str, block: bytes) -> Fault:
    first = (link.at - layout.HEADER_OCTETS) // UNITS[link.of] + 1
    last = first + link.octets // UNITS[link.of] - 1
    what = f"{WORDS[link.of]} {first} to {last}"
    if len(block) < link.octets:
        return Fault(path, link.at, 0, 0, f"{what} were chained, and are not all here")
    seq, ts = layout.EVENT.unpack_from(block)[:2] if link.of == layout.OF_EVENTS else (0, 0)
    return Fault(path, link.at, seq & SEALED, min(ts, SEALED), f"{what} are not those that were chained")


# --- a queue


def judge(queue: QueueFiles, chains: Iterable[Chained], log: tuple[Head, ...] = ()) -> Verdict:
    """The verdict on the chains of one queue: what ``read`` found, and whether they lead to the heads told."""
    known = list(chains)
    faults: list[tuple[Triple | None, Fault]] = [(each.triple, fault) for each in known for fault in each.faults]
    doubts = [each.doubt for each in known if each.doubt]
    faults += _against_manifest(queue, known)
    mine = [head for head in log if (head.vhost, head.queue) == (queue.vhost, queue.queue)]
    more, unknown = _against_log(known, mine)
    faults += more
    doubts += unknown + _missing(known)
    return Verdict(faults, sum(each.events for each in known), sum(each.covered for each in known), doubts)


def _missing(known: list[Chained]) -> list[str]:
    """Complete journals without a chain, though older and newer ones of their level have theirs."""
    lacking = []
    for each in known:
        if each.sealed and not each.blocks and not each.faults and not each.doubt:
            others = [o for o in known if o.triple.priority == each.triple.priority and o.blocks]
            if any(o.triple.number < each.triple.number for o in others) and any(
                    o.triple.number > each.triple.number and o.complete for o in others):
                lacking.append(each.triple.number)
    return [f"no chain of {many(len(lacking), 'journal')}, though those before and behind have theirs (segment "
            f"{lacking[0]})"] if lacking else []


def _compared(each: Chained, head: Head, who: str) -> list[tuple[Triple | None, Fault]]:
    """Whether so many links of a chain lead to that head."""
    file = each.triple.chain or each.triple.journal or each.triple.msgs
    if each.blocks < head.blocks:
        detail = f"{who} names {many(head.blocks, 'link')} of its chain, and {each.blocks} are here"
        return [(each.triple, Fault(file, -1, 0, head.at, detail))]
    if head.blocks and each.head(head.blocks) != head.head:
        detail = f"its chain does not lead to the head that {who} names for {many(head.blocks, 'link')}"
        return [(each.triple, Fault(file, -1, 0, head.at, detail))]
    return []


def _against_manifest(queue: QueueFiles, known: list[Chained]) -> list[tuple[Triple | None, Fault]]:
    said = (queue.manifest or {}).get("chains")
    by_file = {each.triple.chain: each for each in known if each.triple.chain is not None}
    faults: list[tuple[Triple | None, Fault]] = []
    for line in said if isinstance(said, list) else []:
        try:
            head = Head(queue.vhost, queue.queue, 0, 0, 0, 0, int(line["blocks"]), str(line["head"]), str(line["path"]))
        except (KeyError, TypeError, ValueError):
            faults.append((None, Fault("manifest.json", -1, 0, 0, "its list of chains cannot be understood")))
            continue
        each = by_file.get(head.file)
        if each is None:
            faults.append((None, Fault(head.file, -1, 0, 0, "the manifest names this chain, but it is not here")))
        else:
            faults += _compared(each, head, "the manifest")
    return faults


def _against_log(known: list[Chained], log: list[Head]) -> tuple[list[tuple[Triple | None, Fault]], list[str]]:
    """Faults by the log's lines, and doubts about chains that it does not name, though it was kept by then."""
    if not log:
        return [], []
    lines: dict[tuple[int, int, int], list[Head]] = {}
    for head in log:
        lines.setdefault((head.level, head.segment, head.begun), []).append(head)
    faults, unknown = [], []
    since = min(head.at for head in log)
    for each in known:
        named = lines.get((each.triple.priority, each.triple.number, each.begun))
        if named is None:
            if each.made > since:
                unknown.append(each.triple.number)
            continue
        for head in named:
            wrong = _compared(each, head, "the log of heads")
            faults += wrong
            if wrong:
                break
    return faults, [f"the log of heads does not name the chain of segment {number}" for number in unknown[:1]]


def read_log(path: str) -> tuple[Head, ...]:
    """The lines of a log of heads, as the option ``order_journal_chain_log`` has it written; torn ones are left out.

    Raises AuditError: it cannot be read, or has no such line."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise AuditError(f"{path}: {reason(error)}") from None
    heads = []
    for line in lines:
        try:
            said: Any = reading.read_json(line)
            heads.append(Head(str(said["vhost"]), str(said["queue"]), int(said["level"]), int(said["segment"]),
                              int(said["begun"]), int(said["at"]), int(said["blocks"]), str(said["head"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    if not heads:
        raise AuditError(f"{path}: is no log of heads of hash chains: not one line of it names one")
    return tuple(heads)
