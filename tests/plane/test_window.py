"""Which keys a window knows: against a list in Python, with hashes that crowd, when times end and sizes change."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.plane import Window

FOR_EVER = (1 << 63) - 1


class Model:
    """What a window is, as a list."""

    def __init__(self, size):
        self.size = size
        self.entries = []       # [hash, expires], oldest first; hash 0 where it was entered again

    def knows(self, hash_, now):
        return any(entry[0] == hash_ and entry[1] > now for entry in self.entries)

    def enter(self, hash_, expires):
        for entry in self.entries:
            if entry[0] == hash_:
                entry[0] = 0
        self.entries.append([hash_, expires])
        del self.entries[: -self.size]

    def resize(self, size):
        self.size = size
        del self.entries[: -size]


# Few upper halves, so that many share a place of the index; hashes that differ in their lower half alone.
HIGH = st.sampled_from([0, 1, 2, 31, 32, 63, 1 << 31])
HASHES = st.builds(lambda high, low: high << 32 | low, HIGH, st.integers(1, 6))
STEPS = st.lists(st.one_of(
    st.tuples(st.just("enter"), HASHES, st.integers(0, 5)),
    st.tuples(st.just("enter"), HASHES, st.just(1 << 40)),
    st.tuples(st.just("wait"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("resize"), st.integers(1, 70), st.just(0)),
), max_size=200)


@given(STEPS, st.integers(1, 70))
@settings(max_examples=300, deadline=None)
def test_a_window_is_its_model(steps, size):
    window, model, now = Window(size), Model(size), 1000
    seen = set()
    for verb, value, ttl in steps:
        if verb == "enter":
            seen.add(value)
            window.enter(value, now + ttl, now)
            model.enter(value, now + ttl)
        elif verb == "wait":
            now += value
        else:
            window.change(value, -1, b"")
            model.resize(value)
        assert [window.knows(each, now) for each in seen] == [model.knows(each, now) for each in seen]
    assert len(window) <= window.size
    assert len(window) >= sum(model.knows(each, now) for each in seen)


WAITING_STEPS = st.lists(st.one_of(
    st.tuples(st.just("enter"), HASHES),
    st.tuples(st.just("settle"), st.integers(0, 40)),
    st.tuples(st.just("settle"), st.just(0)),
), max_size=300)


@given(WAITING_STEPS)
@settings(max_examples=300, deadline=None)
def test_a_window_of_waiting_keys_knows_those_whose_newest_message_is_not_settled(steps):
    window, waiting, seqs, seen = Window(1 << 24), {}, [], set()
    window.set_rule(by_content=False, waiting=True, action=0, group_from=0)
    for seq, (verb, value) in enumerate(steps, 1):
        if verb == "enter":
            window.enter(value, FOR_EVER, 0, seq)
            waiting[value] = seq
            seqs.append((value, seq))
            seen.add(value)
        elif value < len(seqs):
            hash_, settled = seqs.pop(value)
            window.forget(hash_, settled)
            if waiting.get(hash_) == settled:
                del waiting[hash_]
        assert {each: window.seq_of(each) for each in seen if window.knows(each, 0)} == waiting
        assert len(window) == len(waiting)


def test_keys_that_wait_long_stay_in_a_window_through_which_many_others_go():
    window = Window(1000)
    window.set_rule(by_content=False, waiting=True, action=0, group_from=0)
    old = [number * 0x9E3779B97F4A7C15 % (1 << 64) for number in range(1, 500)]
    for seq, hash_ in enumerate(old):
        window.enter(hash_, FOR_EVER, 0, seq)
    for seq in range(1000, 100_000):
        hash_ = seq * 0x9E3779B97F4A7C15 % (1 << 64)
        window.enter(hash_, FOR_EVER, 0, seq)
        if seq >= 1300:         # 300 of them wait, too.
            window.forget((seq - 300) * 0x9E3779B97F4A7C15 % (1 << 64), seq - 300)
    assert all(window.knows(hash_, 0) for hash_ in old)
    assert len(window) == 499 + 300
    assert window.octets <= 4 * 1024 * 40
    for seq in range(200_000, 200_500):         # More wait than it holds: the oldest are forgotten.
        window.enter(seq << 20, FOR_EVER, 0, seq)
    assert len(window) == 1000


def test_a_key_is_not_forgotten_for_an_older_message():
    window = Window(10)
    window.enter(7, FOR_EVER, 0, 1)
    window.enter(7, FOR_EVER, 0, 2)
    window.forget(7, 1)
    assert window.knows(7, 0)
    window.forget(7, 2)
    window.forget(8, 2)
    assert not window.knows(7, 0)


def test_a_key_that_is_still_to_move_to_a_larger_ring_is_not_forgotten_for_an_older_message():
    window = Window(100_000)
    for number in range(1, 5000):
        window.enter(number, FOR_EVER, 0, number)
        window.forget(number // 2 + 1, number + 1)
        window.forget(1, 2)
    assert all(window.knows(number, 0) for number in range(1, 5000))


def test_rows_do_not_replace_a_newer_message_of_their_key():
    window = Window(10)
    window.enter(7, FOR_EVER, 0, 5)
    rows = struct.pack("<QQqQQqQQq", 4, 7, 1, 6, 8, FOR_EVER, 9, 8, FOR_EVER)
    window.load(rows, 0, unless_newer=True)
    assert (window.knows(7, 1), window.seq_of(7), window.seq_of(8), window.seq_of(9)) == (True, 5, 9, 0)


def test_a_window_that_was_used_for_long_is_its_model():
    window, model = Window(500), Model(500)
    for number in range(1, 20_000):
        hash_ = number * 0x9E3779B97F4A7C15 % (1 << 64) if number % 7 else (number // 3 + 1) << 20
        window.enter(hash_, FOR_EVER, 0)
        model.enter(hash_, FOR_EVER)
    hashes = [entry[0] for entry in model.entries if entry[0]]
    assert all(window.knows(each, 0) for each in hashes)
    assert len(window) == len(hashes)


def test_a_window_that_grows_and_shrinks_while_its_keys_are_still_moving_is_its_model():
    window, model = Window(3000), Model(3000)
    hashes = [number * 0x9E3779B97F4A7C15 % (1 << 64) for number in range(1, 2100)]
    for number, hash_ in enumerate(hashes):
        window.enter(hash_, FOR_EVER, 0)
        model.enter(hash_, FOR_EVER)
        if number % 5 == 4:     # Of the old ring, and of the new one: it is the newest then.
            for each in (hashes[number // 2], hashes[number - 2]):
                window.enter(each, FOR_EVER, 0)
                model.enter(each, FOR_EVER)
        if number in (66, 70, 1400, 1401):
            for size in (40, 17, 3000):
                window.change(size, -1, b"")
                model.resize(size)
        if number % 40 == 26 or 60 < number < 80 or 1395 < number < 1405:
            entered = hashes[:number]
            assert [window.knows(each, 0) for each in entered] == [model.knows(each, 0) for each in entered]
            assert len(window) == sum(entry[0] != 0 for entry in model.entries)


def test_no_key_waits_for_a_ring_to_grow():
    """The key that makes it grow leaves the others where they are, and few come along with each after it."""
    window = Window(1 << 24)
    keys = (n * 0x9E3779B97F4A7C15 % (1 << 64) for n in range(1, 1 << 20))      # spread as hashes are
    for _ in range(1, 1 << 16):
        window.enter(next(keys), FOR_EVER, 0)
    before = window.octets
    window.enter(next(keys), FOR_EVER, 0)
    window.enter(next(keys), FOR_EVER, 0)
    assert window.octets == 3 * before              # both rings are there
    for _ in range(1, (1 << 16) // 4 + 2):
        window.enter(next(keys), FOR_EVER, 0)
    assert window.octets == 2 * before
    assert len(window) == (1 << 16) + (1 << 14) + 2


def test_an_empty_window_knows_nothing_and_holds_no_memory():
    window = Window(1 << 24)
    assert not window.knows(1, 0)
    assert (len(window), window.octets, window.entered) == (0, 0, 0)


def test_memory_follows_the_keys_that_count_not_the_size():
    window = Window(1 << 24)
    for now in range(1, 100_000):
        window.enter(now << 30 | now, now + 100, now)
    assert len(window) <= 256
    assert window.octets < 32_000


def test_a_million_keys_take_less_than_64_mb():
    rows = b"".join(struct.pack("<QQq", n, n * 0x9E3779B97F4A7C15 % (1 << 64), FOR_EVER) for n in range(1, 1_000_001))
    for size in (1_000_000, 1 << 24):
        window = Window(size)
        window.load(rows, 0)
        assert len(window) == 1_000_000
        assert window.octets < 64_000_000


def test_rows_are_entered_in_the_order_that_they_say_each_once():
    rows = [(3, 30, 9), (1, 10, 9), (2, 20, 9), (3, 30, 9), (1, 10, 9), (4, 10, 5)]
    window = Window(2)
    window.load(b"".join(struct.pack("<QQq", *row) for row in rows), 0)
    assert [window.knows(each, 0) for each in (10, 20, 30)] == [True, False, True]
    assert not window.knows(10, 5)      # the later of the two
    assert window.entered == 2
    window.load(b"", 0)


def test_0_is_no_hash_and_no_size():
    with pytest.raises(ValueError, match="0 is no hash"):
        Window(1).enter(0, 1, 0)
    with pytest.raises(ValueError, match="one key at least"):
        Window(0)
    with pytest.raises(ValueError, match="one key at least"):
        Window(1).change(0, -1, b"")


def test_a_window_of_waiting_keys_that_becomes_smaller_keeps_the_newest():
    window = Window(8)
    window.set_rule(by_content=False, waiting=True, action=0, group_from=0)
    for key in range(1, 9):
        window.enter(key << 32, 1 << 60, 0, key)
    window.change(2, -1, b"")
    assert (len(window), [window.knows(key << 32, 0) for key in range(1, 9)]) == (2, [False] * 6 + [True] * 2)
