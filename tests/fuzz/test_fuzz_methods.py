"""Every method at a real broker, for a few seconds; the search itself is long, and made by hand or by .ci/sanitize."""

import random
from collections import Counter

import pytest
from tests.fuzz import fuzz_methods, talk

from brokerd.wire import methods


def test_some_thousand_methods_harm_neither_the_broker_nor_a_well_behaved_client():
    counts, codes = fuzz_methods.fuzz(blocks=1, seed=1, inputs=8000)
    assert counts["inputs"] > 5000
    assert counts["starts"] > 1
    assert {code for of_channel, code in codes if of_channel} >= {404, 406}
    assert {code for of_channel, code in codes if not of_channel} >= {501, 502, 504}


def said(seed, count=400):
    talker = talk.Talker(random.Random(seed), 0.2)
    return [*talker.start(), *(talker.next() for _ in range(count))]


def test_a_connection_of_a_seed_always_says_the_same():
    assert said(3) == said(3)
    assert said(3) != said(4)


def test_every_method_of_the_table_is_said():
    heard = Counter()
    for seed in range(60):
        talker = talk.Talker(random.Random(seed), 0)
        rare = (talker.server_only(talker.rng, 1) for _ in range(10))
        for each in (*talker.start(), *rare, *(talker.next() for _ in range(400))):
            octets = each if isinstance(each, bytes) else each.octets([1])
            while octets:
                size = int.from_bytes(octets[3:7])
                if octets[0] == 1:
                    heard[int.from_bytes(octets[7:11])] += 1
                octets = octets[8 + size:]
    # With it a client takes its leave.
    assert {name for name, method in methods.BY_NAME.items() if method.INDEX not in heard} == {"connection.close"}


@pytest.mark.parametrize("line", [
    "2026-01-02 03:04:05.678 ERROR   what", "2026-01-02 03:04:05.678 CRITICAL what",
    "Traceback (most recent call last):",
    "python: Assertion failed", "2026-01-02 03:04:05.678 WARNING internal error", "Exception ignored in: x"])
def test_a_line_that_tells_of_a_fault_is_seen(line):
    assert fuzz_methods.faults_of([line]) == [line]


def test_lines_of_a_sound_broker_are_no_faults():
    assert fuzz_methods.faults_of(["2026-01-02 03:04:05.678 INFO    x", "2026-01-02 03:04:05.678 WARNING y"]) == []


def test_541_and_octets_that_are_no_frame_are_faults():
    hostile = fuzz_methods.Hostile(5)
    close = methods.ConnectionClose(reply_code=541, reply_text="INTERNAL_ERROR").frame(0)
    with pytest.raises(fuzz_methods.Fault, match="541"):
        hostile.take(0, close[7:-1])
    broken = close[:-1] + b"\0"
    hostile.sock = type("Socket", (), {"recv": lambda self, most: broken})()
    with pytest.raises(fuzz_methods.Fault, match="no frame"):
        hostile.read()
