"""Topic patterns: against a naive matcher, RabbitMQ's corners, and what lookups may cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.destinations import queues
from tests.exchanges.naive import split, topic_matches

from brokerd.exchanges import TopicExchange, topic
from brokerd.wire.properties import Properties

PATTERN = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
KEY = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


def routed(patterns, key):
    exchange, ends = TopicExchange("x"), queues(len(patterns))
    for end, pattern in zip(ends, patterns, strict=True):
        exchange.bind(end, pattern)
    found = set(exchange.destinations(key, Properties))
    return [pattern for end, pattern in zip(ends, patterns, strict=True) if end in found]


LONG_KEY = st.lists(st.sampled_from(["a", "b", ""]), max_size=30).map(".".join)


@settings(max_examples=500)
@given(patterns=st.lists(PATTERN, max_size=15), key=KEY)
def test_the_trie_finds_what_matching_each_pattern_finds(patterns, key):
    assert routed(patterns, key) == [p for p in patterns if topic_matches(split(p), split(key))]


@settings(max_examples=200)
@given(patterns=st.lists(PATTERN, max_size=15), key=LONG_KEY)
def test_it_finds_the_same_where_it_remembers_what_a_word_has_led_to(patterns, key):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_LARGE", 1)
        assert routed(patterns, key) == [p for p in patterns if topic_matches(split(p), split(key))]


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("a.#", "a", True),
        ("#.a", "a", True),
        ("#.#", "", True),
        ("*", ".", False),
        ("*.*", ".", True),
        ("a.*.b", "a..b", True),
        ("*.#", "", False),
        ("#.*", "a", True),
        ("a.#.b.#.c", "a.b.b.x.c", True),
        ("a.#.b.#.c", "a.x.c", False),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("*.b", "*.b", True),
    ],
)
def test_a_pattern_takes_the_keys_that_rabbitmq_lets_it(pattern, key, expected):
    assert bool(routed([pattern], key)) is expected


class Counted(str):
    """A word that counts how often it is looked up."""

    __slots__ = ()
    asked = 0

    def __hash__(self):
        Counted.asked += 1
        return super().__hash__()


def lookups(exchange, words):
    Counted.asked = 0
    list(exchange._places(exchange._root, [Counted(word) for word in words]))
    return Counted.asked


def test_many_hashes_cost_no_more_than_words_times_places():
    exchange, (queue,) = TopicExchange("x"), queues(1)
    exchange.bind(queue, ".".join(["#", "a"] * 60 + ["b"]))
    words = ["a"] * 128
    assert list(exchange.destinations(".".join([*words, "b"]), Properties)) == [queue]
    assert lookups(exchange, words) <= 128 * 122


def test_a_lookup_takes_the_same_steps_among_a_hundred_times_the_bindings():
    small, big, (queue,) = TopicExchange("x"), TopicExchange("y"), queues(1)
    for exchange, count in ((small, 10), (big, 1000)):
        for number in range(count):
            exchange.bind(queue, f"shop{number}.*.#")
    words = ["shop3", "x", "y"]
    assert lookups(small, words) == lookups(big, words)
