"""The promises of docs/ordering.md and the rules of docs/formats.md, judged once more over the objects of ``folder``.

    judge(queue) -> [Broken(rule, seq, why)]        nothing: the queue contradicts no promise
    judge_tree(tree) -> {name of a queue: [...]}    and what concerns several queues

It plays all records and events of a queue in the order of their times, with the state of each message, and compares the
end with the acks, the counters and the manifest.  It is slow, simple, and made for small files without power cuts.  A
fault that it does not see is no fault for the planter.
"""

from collections import Counter, defaultdict
from itertools import pairwise

from tests.planter import properties
from tests.planter.files import (
    ASIDE,
    DEAD,
    HANDED_OUT,
    MARK,
    ON_AGAIN,
    RETURNED,
    SETTLING,
    STARTED,
    SWITCHED_OFF,
    AcksFile,
)
from tests.planter.play import GONE, OUT, READY, Broken, Play
from tests.planter.play_groups import AGAIN, GroupPlay, is_played, judge_keys, judge_told, judge_tries, since_replay

PARKED, RETRY_TIME, REPLAYED = 11, 12, 13       # entries


def needed_version(events):
    """The first version of a journal that may hold these events."""
    return max([1, *(3 if event.type in (18, 21, 22, 25) else 2 for event in events if event.type >= 16)])


# --- the whole


def judge(queue):
    """What the files of a queue contradict."""
    play = GroupPlay(queue) if is_played(queue) else Play(queue)
    _judge_places(queue, play)
    if queue.journaled:
        play.run()
        _judge_end(queue, play)
        judge_keys(queue, play)
        if isinstance(play, GroupPlay):
            judge_told(queue, play)
            judge_tries(queue, play)
    _judge_acks_alone(queue, play)
    _judge_manifest(queue, play)
    return play.broken


def _judge_places(queue, play):
    """What concerns records, words and headers alone."""
    last = {}                       # (connection, channel) -> publish_seq
    records = sorted(((record.seq, record.ts, part, record) for part in queue.parts for record in part.records()),
                     key=lambda each: each[:2])
    ts, has_levels = 0, bool(queue.setting("max_priority")) or any(part.level for part in queue.parts)
    for seq, its, part, record in records:
        if its <= ts:
            play.say("time rises", seq, f"{its} behind {ts}")
        ts = its
        said = properties.priority(record.meta)
        if record.priority != said or (has_levels and record.priority != part.level):
            play.say("priority", seq, f"{record.priority} in {part.level}, its properties say {said}")
        stream = record.connection, record.channel
        if record.publish_seq and record.publish_seq <= last.get(stream, 0):
            play.say("publish order", seq, f"{record.publish_seq} behind {last[stream]}")
        last[stream] = max(record.publish_seq, last.get(stream, 0))
        if record.wrong:
            play.say("damage", seq, "the CRC of a record")
        if record.kind or record.flags & ~31:
            play.say("kinds and flags", seq, f"kind {record.kind}, flags {record.flags:#x}")
    _judge_holes(queue, play, [seq for seq, *_ in records])
    for part in queue.parts:
        _judge_part(part, play)


def _judge_holes(queue, play, seqs):
    """Every number is there, from the first one kept on."""
    entry = queue.entry or {}
    first = entry.get("first_kept_seq") or (1 if queue.journaled and not _removed(queue) else min(seqs, default=1))
    end = entry.get("next_seq") or max(seqs, default=0) + 1
    there = sorted(set(seqs))
    before = first - 1
    for seq in [*(seq for seq in there if first <= seq < end), end]:
        if seq > before + 1:            # An edited number may be far away: one is said of all between.
            play.say("every number", before + 1, f"it is not there, nor what follows before {seq}")
        before = seq
    for seq in there:
        if seq >= end:
            play.say("numbers below the next", seq, f"next_seq {end}")


def _removed(queue):
    return any(line["what"] == "removed" for line in queue.lines or ())


def _judge_part(part, play):
    msgs, acks, journal = part.msgs, part.acks, part.journal
    first = part.records()[0].seq if part.records() else 0
    if acks is None and play.queue.is_stream:
        acks = AcksFile(part.number, msgs.generation if msgs is not None else 0, 0, 0, 0, None, [], b"")
    if msgs is None or acks is None:
        play.say("files", first, f"segment {part.number} has not all of its files")
        return
    # Version 1 lacks types 8 and 10, and ``doubted``; version 2 lacks types 11 to 13.  Without these all versions are
    # read by the same rules.
    types = {entry.type for entry in acks.entries}
    oldest = 3 if types & {11, 12, 13} else 2 if acks.doubted is not None or types & {HANDED_OUT, ASIDE} else 1
    if (msgs.magic, msgs.version, acks.magic) != (b"BSEG", 1, b"BACK") or not oldest <= acks.version <= 3:
        play.say("versions", first, f"segment {part.number}")
    if not part.number == msgs.number == acks.number:
        play.say("numbers of files", first, f"segment {part.number}")
    if msgs.generation != acks.generation:
        play.say("generations", first, f"{msgs.generation} and {acks.generation}")
    if journal is None and play.queue.journaled:
        play.say("files", first, f"segment {part.number} has no journal")
    if msgs.sealed not in (0, 1, 2) or (msgs.sealed == 0 and part is not _newest(play.queue, part.level)):
        play.say("words", first, f"sealed {msgs.sealed}")
    if journal is not None:
        # Version 1 lacks the events from type 16 on.
        if (journal.magic, journal.number) != (b"BJRN", part.number) \
                or not needed_version(journal.events) <= journal.version <= 3:
            play.say("versions", first, f"journal {part.number}")
        if journal.count_word != len(journal.events) or journal.lost:
            play.say("words", first, "events")
        if any(after.ts <= before.ts for before, after in pairwise(journal.events)):
            play.say("time rises", first, f"events of {part.number}")
    _judge_head(part, acks, play, first)
    seqs = [record.seq for record in msgs.records]
    if any(after <= before for before, after in pairwise(seqs)):
        play.say("numbers rise", first, f"segment {part.number}")
    if seqs and msgs.base_seq != seqs[0] and not msgs.generation:
        play.say("base_seq", first, f"{msgs.base_seq}, first record {seqs[0]}")
    if msgs.count_word != len(msgs.records) or acks.count_word != len(acks.entries):
        play.say("words", first, "records or entries")
    if any(event.copy().octets(part.number) != event.octets(part.number) for event in part.events()):
        play.say("damage", first, f"the CRC of an event of {part.number}")
    files = [file for file in (msgs, acks, journal) if file is not None]
    if any(each.wrong for each in (*part.entries(), *part.events(), *files)):
        play.say("damage", first, f"segment {part.number}")


def _judge_head(part, acks, play, first):
    """What headers and marks say by themselves, by docs/formats.md."""
    msgs, journal = part.msgs, part.journal
    places = {0, 64, msgs.end, *(record.position for record in msgs.records)}
    if acks.delivered not in places or (acks.doubted or 0) not in places:
        play.say("headers", first, f"the cursors {acks.delivered} and {acks.doubted}")
    if acks.blank != bytes(8) or (journal is not None and journal.blank != bytes(4)):
        play.say("headers", first, "reserved octets")
    if msgs.records and msgs.created > min(record.ts for record in msgs.records):
        play.say("headers", first, "made after its first record")
    if msgs.generation and (not msgs.sealed or acks.delivered != msgs.end):
        play.say("headers", first, f"generation {msgs.generation}")
    if journal is None:
        return
    if any(event.ts <= journal.begun for event in journal.events):
        play.say("headers", first, "begun after an event")
    synced, complement = int.from_bytes(journal.synced[:8], "little"), int.from_bytes(journal.synced[8:], "little")
    if (synced or complement) and (synced ^ complement != (1 << 64) - 1 or not journal.begun <= synced < 1 << 63):
        play.say("headers", first, f"synced {synced}")
    before = journal.begun
    for event in journal.events:
        wanted = {STARTED: event.ts, SWITCHED_OFF: event.ts, ON_AGAIN: before}.get(event.reason, event.seq)
        if event.type == MARK and event.seq != wanted:
            play.say("marks", 0, f"keeps {event.seq}, which should be {wanted}")
        before = event.ts


def _newest(queue, level):
    return [part for part in queue.parts if part.level == level][-1]


def _judge_acks_alone(queue, play):
    """What acks files contradict by themselves."""
    for part in queue.parts:
        if part.acks is None or part.msgs is None:
            continue
        settled = Counter()
        for entry in part.acks.entries:
            seq = entry.record.seq if entry.record is not None else 0
            if entry.record is None:
                play.say("entries have records", 0, f"position {entry.position}")
            elif entry.type == REPLAYED:
                settled[id(entry.record)] = 0
            elif settled[id(entry.record)]:
                play.say("settled once", seq, "an entry behind its settlement")
            settled[id(entry.record)] += entry.settles
            was_out = entry.type in (1, 2, 3, 8)        # acked, rejected, returned, handed out
            if entry.record is not None and was_out and entry.record.position >= part.acks.delivered \
                    and not entry.record.flags & AGAIN:
                play.say("the cursor passes what is handed out", seq, f"it stands at {part.acks.delivered}")
            if entry.type not in (*SETTLING, RETURNED, HANDED_OUT, ASIDE, PARKED, RETRY_TIME, REPLAYED):
                play.say("types", seq, f"entry of type {entry.type}")
        if part.acks.settled != len(+settled):
            play.say("words", 0, f"settled {part.acks.settled}, {len(+settled)} entries")


def _judge_end(queue, play):
    """The acks say what the journal says."""
    entries = defaultdict(list)
    for part in queue.parts:
        for entry in part.entries():
            if entry.record is not None:
                entries[entry.record.seq].append(entry)
    entries = {seq: since_replay(found) for seq, found in entries.items()}
    for seq, life in play.lives.items():
        entries.setdefault(seq, [])
        said = [(entry.type, entry.reason) for entry in entries[seq] if entry.settles]
        if [life.settled] * bool(life.settled) != said:
            play.say("acks and journal", seq, f"acks {said}, journal {life.settled}")
        if life.entries and life.entries[-1][0] == RETURNED and play.is_beyond_limit(life, 1 << 62):
            life.entries.pop()      # It came back once too often: it was set aside at once.
        said, told = play.compared(entries[seq], life.entries)
        if said != told and life.part.acks is not None and not life.part.acks.generation:
            play.say("acks and journal", seq, f"acks {said}, journal {told}")
        last = entries[seq][-1] if entries[seq] else None
        if life.state == GONE or life.part.acks is None:
            continue
        passed = life.record.position < life.part.acks.delivered
        if life.state == OUT and (last.type != HANDED_OUT if last else not passed):
            play.say("acks and journal", seq, "out in the journal, not in the acks")
        if life.state == READY:
            _judge_ready(life, last, play)


def _judge_ready(life, last, play):
    seq = life.record.seq
    if not life.seen and last is None and life.record.position < life.part.acks.delivered:
        play.say("acks and journal", seq, "passed by the cursor, not in the journal")
    if last is not None and last.type == RETURNED and last.count != life.failed:
        play.say("failures", seq, f"{last.count} in the acks, {life.failed} in the journal")


def _judge_manifest(queue, play):
    """The manifest and the file ``order`` say what can be counted."""
    entry = queue.entry
    if entry is None:
        return
    if queue.journaled:
        states = Counter(life.state for life in play.lives.values())
        least = states[READY] - play.waiting()
        if not least <= entry["ready"] <= states[READY] or entry["unacked"] != states[OUT]:
            play.say("manifest", 0, f"ready {entry['ready']}, unacked {entry['unacked']}, counted {states}")
    for part in queue.parts:
        for each in (*part.records(), *part.events()):
            if each.ts > entry["cut"]:
                play.say("nothing behind the cut", each.seq, f"{each.ts}")
    if list(entry["counters"].values()) != (queue.counters or [0] * len(entry["counters"])):
        play.say("counters", 0, "the manifest and the file order differ")
    if queue.journaled:
        for name, value in entry["counters"].items():
            if play.counts[name] != value:
                play.say("counters", 0, f"{name}: {value} in the manifest, {play.counts[name]} in the journal")


def judge_tree(tree):
    """What the files of all queues contradict: {name: [Broken]}."""
    found = {name: judge(queue) for name, queue in tree.queues.items()}
    root = tree.root.get("schema_version")
    if (root is not None and root.strip() != b"1") or (tree.manifest or {}).get("manifest", 1) != 1:
        next(iter(found.values())).append(Broken("versions", 0, "of the folder"))
    for name, queue in tree.queues.items():
        found[name] += _letters(queue, tree)
    return found


def _letters(queue, tree):
    """Each dead letter stands in the queue that it went to, by the body, in the order in which the messages died."""
    key = (queue.setting("arguments") or {}).get("x-dead-letter-routing-key")
    if key not in tree.queues:
        return []
    bodies = {record.body: record for part in tree.queues[key].parts for record in part.records()}
    deaths = sorted((event.ts, event.seq) for part in queue.parts for event in part.events() if event.type == DEAD)
    messages = {record.seq: record for part in queue.parts for record in part.records()}
    broken, last = [], 0
    for _, seq in deaths:
        letter = bodies.get(messages[seq].body) if seq in messages else None
        if letter is None:
            broken.append(Broken("dead letters arrive", seq, f"it is not in {key}"))
        elif letter.seq < last:
            broken.append(Broken("dead letters keep their order", seq, f"{letter.seq} behind {last}"))
        last = max(last, letter.seq if letter is not None else 0)
    return broken
