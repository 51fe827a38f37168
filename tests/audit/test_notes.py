"""Events of parks, tokens, duplicates and replays that contradict the records and events around them."""

import pytest
import writer
from test_waits import GROUPS, ONE, OTHER, STEP, T, acked, meta, out

from brokerd.audit.files import open_source
from brokerd.audit.segment import read_triple
from brokerd.store.format import DUPLICATE_EVENT, EVENT_REPLAYED, RESTARTED, STARTED, TOKEN_EVENT

NOT_THERE, NOT_TOLD, NO_KEY = "not in the segment", "not told with a delivery", "without a deduplication key"


def damage(root, steps, hashes=(0, 0, 0, 0), flags=0):
    """What is damaged, in words."""
    rows = [(T + STEP * k, seq or T + STEP * k, type_, *(more[:1] or (0,)), consumer)
            for k, (seq, type_, consumer, *more) in enumerate(steps, 1)]
    messages = writer.messages(range(1, 5), range(T - 100, T - 96))
    messages["dedup_hash"] = hashes
    messages["flags"] |= flags
    level = writer.Level(messages, writer.events(rows), metas=[meta("a")] * 4)
    source = open_source(str(writer.write_queue(root, level, writer.Options(settings={"groups": GROUPS}))))
    return [each.detail for queue in source.queues() for triple in queue.triples
            for each in read_triple(source, triple).damage]


def token(seq, consumer=ONE):
    return seq, TOKEN_EVENT, consumer


@pytest.mark.parametrize(("steps", "hashes", "words"), [
    ([token(1), out(1), acked(1)], (0, 0, 0, 0), None),
    ([out(1), token(9)], (0, 0, 0, 0), NOT_THERE),
    ([token(1), out(1, OTHER)], (0, 0, 0, 0), NOT_TOLD),
    ([out(1), token(1), acked(1)], (0, 0, 0, 0), NOT_TOLD),
    ([token(1), (0, STARTED, 0, RESTARTED), out(1, OTHER)], (0, 0, 0, 0), None),
    ([token(1)], (0, 0, 0, 0), None),
    ([(1, DUPLICATE_EVENT, 0, 1)], (7, 0, 0, 0), None),
    ([(2, DUPLICATE_EVENT, 0, 1)], (7, 0, 0, 0), NO_KEY),
    ([(9, DUPLICATE_EVENT, 0, 1)], (7, 0, 0, 0), NOT_THERE),
    ([(9, EVENT_REPLAYED, 0)], (0, 0, 0, 0), NOT_THERE),
], ids=["right", "no message", "another consumer", "no delivery", "a start between", "not yet", "a key", "no key",
        "no such message", "replayed, and not there"])
def test_what_contradicts_its_message_is_damage(tmp_path, steps, hashes, words):
    found = damage(tmp_path, steps, hashes)
    assert [words in each for each in found] == [True] if words else found == []


def test_a_token_without_a_delivery_is_the_last_thing_of_a_life(tmp_path):
    """The delivery is the next thing that a broker writes, unless it is killed."""
    later = [out(3), acked(3)]
    (found,) = damage(tmp_path / "on", [token(1), *later])
    assert NOT_TOLD in found
    assert damage(tmp_path / "start", [token(1), (0, STARTED, 0, RESTARTED), *later]) == []


def test_a_redriven_message_says_where_it_stood(tmp_path):
    assert ["where it stood" in each for each in damage(tmp_path, [], flags=16)] == [True] * 4
