"""Random edits of one octet or of one record, entry or event, with corrected checksums.

    python -m tests.planter.edits FOLDER --count 10000 --seed 1 [--story lives] [--stopped]

Each is found by the audit, or the model of this package shows that it contradicts no promise (another body, say).  An
edit is missed when the model sees something and the audit says what it said of the files without it.  FOLDER holds a
sample, or gets one: that of ``samples``, or with ``--story lives`` that of ``samples_lives``.  ``--stopped`` edits the
data directory, in which the broker has stopped, in place of the dump.
"""

import argparse
import shutil
import struct
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.planter import samples_lives
from tests.planter.asking import Endless, Known, Refused, ask, ask_within
from tests.planter.crc import crc32c, fold
from tests.planter.files import RECORD, word
from tests.planter.folder import Tree, repair_digests
from tests.planter.planting import EFFECTS_OF_USE
from tests.planter.samples import QUEUES as QUEUES_OF_SAMPLE
from tests.planter.samples import sample, with_others
from tests.planter.survey import seen_by_model

SECONDS = 20                        # of one audit, which takes some hundredths of a second
QUEUES = tuple(QUEUES_OF_SAMPLE)


class Edit(NamedTuple):
    path: str                       # of the file, relative to the tree
    what: str                       # the kind of thing and the field: "event.consumer"
    octets: bytes                   # the file as it is now
    text: str


# --- one octet

_RECORD_FIELDS = ((0, "magic"), (4, "length"), (8, None), (12, "meta_len"), (14, "priority"), (15, "kind"), (16, "seq"),
                  (24, "ts"), (32, "connection"), (36, "channel"), (38, "flags"), (40, "publish_seq"),
                  (48, "group_hash"), (56, "dedup_hash"), (64, "meta"))
_EVENT_FIELDS = ((0, "seq"), (8, "ts"), (16, "consumer"), (20, "aux"), (24, "count"), (26, "type"), (27, "reason"),
                 (28, None))
_ENTRY_FIELDS = ((0, "position"), (4, "kind"), (5, None), (6, "count"))
_HEADS = {
    "msgs": (((0, "magic"), (4, "version"), (8, "number"), (16, "base_seq"), (24, "created"), (32, "generation"),
              (36, None)), 36, ((40, "end"), (48, "records"), (56, "sealed"))),
    "acks": (((0, "magic"), (4, "version"), (8, "number"), (16, "generation"), (20, None)), 20,
             ((24, "delivered"), (32, "entries"), (40, "settled"), (48, "doubted"))),
    "journal": (((0, "magic"), (4, "version"), (8, "number"), (16, "begun"), (24, None)), 24,
                ((32, "events"), (40, "lost"))),
}


def _field(fields, offset):
    return [name for at, name in fields if at <= offset][-1]


def _other(random, value):
    """Another octet; often one bit is another."""
    return value ^ 1 << random.randrange(8) if random.random() < 0.5 else (value + random.randrange(1, 256)) % 256


def change_octet(kind, octets, random):
    """(what, octets) of a file with one other octet and corrected checksums; None: this octet is a checksum."""
    octets = bytearray(octets)
    number = struct.unpack_from("<Q", octets, 8)[0]
    fields, crc_at, words = _HEADS[kind]
    dice = random.random()
    if dice < 0.04:
        return _change_bare(kind, octets, random)
    if dice < 0.08:
        offset = random.randrange(crc_at)
        octets[offset] = _other(random, octets[offset])
        struct.pack_into("<I", octets, crc_at, crc32c(octets[:crc_at]))
        return f"{kind}.{_field(fields, offset)}", bytes(octets)
    if dice < 0.16:
        at, name = random.choice(words)
        octets[at + random.randrange(4 if random.random() < 0.2 else 2)] ^= 1 << random.randrange(8)
        octets[at:at + 8] = word(struct.unpack_from("<I", octets, at)[0])
        return f"{kind}.{name}", bytes(octets)
    return {"msgs": _change_record, "acks": _change_entry, "journal": _change_event}[kind](octets, number, random)


# What no CRC covers and no word is: reserved octets, and the time up to which a journal was synced.
_BARE = {"msgs": (), "acks": (("reserved", 56, 8),),
         "journal": (("reserved", 28, 4), ("synced", 48, 8), ("synced, one octet", 48, 16))}


def _change_bare(kind, octets, random):
    if not _BARE[kind]:
        return None
    name, at, size = random.choice(_BARE[kind])
    place = at + random.randrange(size)
    octets[place] = _other(random, octets[place])
    if name == "synced":                # With its complement.
        octets[56:64] = struct.pack("<Q", ~struct.unpack_from("<Q", octets, 48)[0] & (1 << 64) - 1)
    return f"{kind}.{name}", bytes(octets)


def _change_record(octets, number, random):
    positions, at, end = [], 64, struct.unpack_from("<I", octets, 40)[0]
    while at < end:
        positions.append(at)
        at += struct.unpack_from("<I", octets, at + 4)[0] + 7 & ~7
    if not positions:
        return None
    at = random.choice(positions)
    length, meta_len = struct.unpack_from("<I", octets, at + 4)[0], struct.unpack_from("<H", octets, at + 12)[0]
    offset = random.randrange(64) if random.random() < 0.8 else random.randrange(64, min(length, 64 + meta_len + 40))
    name = "body" if offset >= 64 + meta_len else _field(_RECORD_FIELDS, offset)
    if name is None:
        return None
    octets[at + offset] = _other(random, octets[at + offset])
    length = struct.unpack_from("<I", octets, at + 4)[0]
    if RECORD.size <= length <= len(octets) - at:
        crc = crc32c(struct.pack("<Q", number) + octets[at + 12:at + length])
        struct.pack_into("<I", octets, at + 8, crc)
    return f"record.{name}", bytes(octets)


def _change_event(octets, number, random):
    count = struct.unpack_from("<I", octets, 32)[0]
    if not count:
        return None
    at, offset = 64 + 32 * random.randrange(count), random.randrange(28)
    octets[at + offset] = _other(random, octets[at + offset])
    struct.pack_into("<I", octets, at + 28, crc32c(struct.pack("<Q", number) + octets[at:at + 28]))
    return f"event.{_field(_EVENT_FIELDS, offset)}", bytes(octets)


def _change_entry(octets, number, random):
    count = struct.unpack_from("<I", octets, 32)[0]
    offset = random.choice((0, 1, 2, 3, 4, 6, 7))
    if not count:
        return None
    at = 64 + 8 * random.randrange(count)
    octets[at + offset] = _other(random, octets[at + offset])
    octets[at + 5] = 0
    octets[at + 5] = fold(number, octets[at:at + 8])
    return f"entry.{_field(_ENTRY_FIELDS, offset)}", bytes(octets)


# --- one thing

NO_FIELDS = ("position", "sum", "wrong", "body", "meta")


def change_thing(part, kind, random):
    """What was done to one record, entry or event of a part's file, which is changed in place; None: nothing."""
    file = getattr(part, kind)
    name, things = {"msgs": ("record", part.records()), "acks": ("entry", part.entries()),
                    "journal": ("event", part.events())}[kind]
    if len(things) < 3:
        return None
    place = random.randrange(len(things) - 1)
    one = things[place]
    how = random.choice(("removed", "twice", "swapped", "like another", "field"))
    if how == "removed":
        things.remove(one)
        if kind == "msgs" and part.acks is not None:
            part.acks.entries = [entry for entry in part.acks.entries if entry.record is not one]
    elif how == "twice":
        things.insert(place + 1, one.copy())
    elif how == "swapped":
        things[place], things[place + 1] = things[place + 1], one
    elif how == "like another":
        other = random.choice(things)
        name_of = random.choice([each for each in one.NAMES if each not in NO_FIELDS])
        if getattr(one, name_of) == getattr(other, name_of):
            return None
        one.touch(**{name_of: getattr(other, name_of)})
        how = f"{name_of} of another"
    else:
        field = random.choice([each for each in one.NAMES if isinstance(getattr(one, each), int)
                               and each not in NO_FIELDS])
        value = getattr(one, field) + random.choice((1, -1))
        if value < 0 or (field in ("type", "priority", "reason") and value > (15 if kind == "acks" else 255)):
            return None
        one.touch(**{field: value})
        how = f"{field} by one"
    part.count()
    return f"{name} {how}" if file is not None else None


def edit(tree, name, random):
    """Make one random edit in a tree that was read for it.  Returns what it is, and {path: octets} to be written."""
    queue = tree.queues[name]
    while True:
        part = random.choice(queue.parts)
        kind = random.choice([kind for kind in ("msgs", "acks", "journal") if getattr(part, kind) is not None])
        path = f"{queue.folder}/{part.folder}/{kind}.{part.number:010d}".replace("//", "/")
        if random.random() < 0.6:
            found = change_octet(kind, queue.files[path], random)
            if found is not None and found[1] != queue.files[path]:
                return found[0], {path: found[1]}
        else:
            what = change_thing(part, kind, random)
            # With zeros behind it a file has as many octets as the manifest of a dump says.
            new = {path: octets.ljust(len(queue.files.get(path, b"")), b"\0")
                   for path, octets in queue.new_files().items()}
            new = {path: octets for path, octets in new.items() if octets != queue.files.get(path)}
            if what is not None and new:
                return what, new


def try_one(dump, name, random, room, before, *, known=None, model_always=True, queues=QUEUES_OF_SAMPLE):
    """(what, verdict, text): verdict is found, missed, or nothing (it contradicts no promise).

    ``known`` (Known) saves reading the segments that nothing was changed in.  Without ``model_always`` the model is not
    asked of what the audit has found.
    """
    some = with_others(name, queues)
    tree = Tree(dump, only=some)
    target = tree.link(Path(room) / "edited")
    what, new = edit(tree, name, random)
    try:
        for path, octets in new.items():
            (target / path).unlink()        # A second name of the dump's own file.
            (target / path).write_bytes(octets)
        repair_digests(target)
        try:
            after = ask_within(target, SECONDS, partial(known.ask, changed=set(new)) if known is not None else ask)
        except Refused as error:
            return what, "found", f"refused: {error}"
        except Endless as error:
            return what, "missed", str(error)
        found = [f"{key[1]} {said.verdict}" for key, said in after.items()
               if key[1] not in EFFECTS_OF_USE and said.verdict != "held" and before.get(key, said).verdict == "held"]
        seen = [] if found and not model_always else [
            text for text in seen_by_model(target) if text not in _seen_of_clean(dump, some, room)]
    finally:
        shutil.rmtree(target)
    if found:
        return what, "found", "; ".join(found) if seen or not model_always else f"BEYOND THE MODEL: {'; '.join(found)}"
    return what, "missed" if seen else "nothing", "; ".join(seen[:2])


_OF_CLEAN = {}                      # (dump, names of queues) -> what the model says of them


def _seen_of_clean(dump, names, room):
    """What the model says of queues without an edit; it is simpler than a broker, and may be wrong."""
    key = dump, *sorted(names)
    if key not in _OF_CLEAN:
        target = Tree(dump, only=names).link(Path(room) / "unedited")
        repair_digests(target)
        _OF_CLEAN[key] = set(seen_by_model(target))
        shutil.rmtree(target)
    return _OF_CLEAN[key]


def try_many(dump, count, seed, room, *, quick=False, queues=QUEUES_OF_SAMPLE):
    """Yield (queue, what, verdict, text) of so many edits.  ``quick``: each segment that nothing was changed in is read
    once for all of them, and the model is asked of every fourth edit that the audit has found."""
    clean = Tree(dump).write(Path(room) / "clean")
    random, before, known = Random(seed), ask(clean), Known(clean) if quick else None
    for number in range(count):
        name = random.choice(tuple(queues))
        yield name, *try_one(dump, name, random, room, before, known=known,
                             model_always=not quick or number % 4 == 0, queues=queues)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--story", choices=("sample", "lives"), default="sample")
    parser.add_argument("--stopped", action="store_true")
    options = parser.parse_args()
    queues, tell = (samples_lives.QUEUES, lambda folder: samples_lives.Lives(folder).tell()) \
        if options.story == "lives" else (QUEUES_OF_SAMPLE, sample)
    if not (options.folder / "dump").exists():
        tell(options.folder)
    tally, files = Counter(), options.folder / ("data" if options.stopped else "dump")
    with tempfile.TemporaryDirectory(dir=options.folder) as room:
        for name, what, verdict, text in try_many(files, options.count, options.seed, room, quick=True, queues=queues):
            tally[what, verdict] += 1
            if verdict == "missed" or text.startswith("BEYOND"):
                sys.stdout.write(f"{verdict:8} {name:8} {what:32} {text}\n")
                sys.stdout.flush()
    for what in sorted({what for what, _ in tally}):
        sys.stdout.write(f"{what:40} found {tally[what, 'found']:5}  missed {tally[what, 'missed']:5}  "
                         f"no promise {tally[what, 'nothing']:5}\n")


if __name__ == "__main__":
    main()
