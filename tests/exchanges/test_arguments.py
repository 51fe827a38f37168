"""Exchange arguments: what is refused, in which words, and what a redeclare may not change."""

import pytest

from brokerd.errors import PreconditionFailed
from brokerd.exchanges import EXCHANGE_TYPES
from brokerd.exchanges.arguments import (
    DEDUPLICATION,
    EXCHANGE_ARGUMENTS,
    alternate_exchange,
    check_arguments,
    compared_arguments,
)
from brokerd.wire.values import Int64, Timestamp

THING = "exchange 'x' in vhost '/'"
HASH, HISTORY, DELAYED = "x-consistent-hash", "x-recent-history", "x-delayed-message"
EVERYWHERE = ("alternate-exchange", "x-alternate-exchange", "x-delayed-exchange", *DEDUPLICATION,
              "x-deduplication-scope", "x-deduplication-action")


@pytest.mark.parametrize(("type_", "arguments"), [
    ("direct", {}), ("direct", {"alternate-exchange": "y"}), ("direct", {"x-alternate-exchange": ""}),
    ("direct", {"hash-header": 5, "x-recent-history-length": "no", "unknown": None}),
    (HASH, {"hash-header": "h"}), (HASH, {"x-hash-on": ""}), (HASH, {"hash-property": "message_id"}),
    (HASH, {"hash-property": "correlation_id"}), (HASH, {"hash-property": "timestamp"}),
    (HASH, {"x-algorithm": "jump", "hash-header": "h"}), (HASH, {"x-algorithm": "ring"}),
    (DELAYED, {"x-delayed-type": "direct", "hash-property": 5}), ("x-delayed-exchange", {"x-delayed-type": HASH}),
    ("topic", {"x-delayed-exchange": True}), ("topic", {"x-delayed-exchange": False, "x-delayed-type": 5}),
    ("topic", {"x-message-deduplication": True, "x-cache-size": 0, "x-cache-ttl": 5, "x-deduplication-header": "h"}),
    (HISTORY, {"x-recent-history-length": 1}), (HISTORY, {"x-recent-history-length": Int64(1)}),
])
def test_what_may_be_passes(type_, arguments):
    check_arguments(type_, arguments, THING)


@pytest.mark.parametrize(("type_", "arguments", "text"), [
    ("fanout", {"alternate-exchange": 5}, f"invalid type 'signedint' for arg 'alternate-exchange' in {THING}"),
    ("fanout", {"alternate-exchange": None}, f"invalid type 'void' for arg 'alternate-exchange' in {THING}"),
    ("fanout", {"x-alternate-exchange": [1]}, f"invalid type 'array' for arg 'x-alternate-exchange' in {THING}"),
    (HASH, {"hash-header": "h", "hash-property": "timestamp"},
     "hash-header and hash-property are mutually exclusive"),
    (HASH, {"x-hash-on": "h", "hash-property": "timestamp"}, "x-hash-on and hash-property are mutually exclusive"),
    (HASH, {"hash-property": "foo{}"}, "Unsupported property: foo{}"),
    (HASH, {"hash-property": 5}, f"invalid type 'signedint' for arg 'hash-property' in {THING}"),
    (HASH, {"hash-header": True}, f"invalid type 'bool' for arg 'hash-header' in {THING}"),
    (HASH, {"x-algorithm": "other"}, "Unsupported algorithm: other"),
    (HASH, {"x-algorithm": 1}, f"invalid type 'signedint' for arg 'x-algorithm' in {THING}"),
    *((type_, arguments, "Invalid argument, 'x-delayed-type' must be an existing exchange type")
      for type_, arguments in [(DELAYED, {}), ("x-delayed-exchange", {"a": 1}), (DELAYED, {"x-delayed-type": 5}),
                               (DELAYED, {"x-delayed-type": DELAYED})]),
    (DELAYED, {"x-delayed-type": "no"}, "unknown exchange type 'no'"),
    (DELAYED, {"x-delayed-type": HASH, "hash-property": "foo"}, "Unsupported property: foo"),
    ("topic", {"x-delayed-exchange": 1}, f"invalid type 'signedint' for arg 'x-delayed-exchange' in {THING}"),
    ("topic", {"x-message-deduplication": 1},
     f"invalid arg 'x-message-deduplication' for {THING}: {{unacceptable_type,signedint}}"),
    ("topic", {"x-cache-size": -1}, f"invalid arg 'x-cache-size' for {THING}: {{value_negative,-1}}"),
    *((HISTORY, {"x-recent-history-length": value},
       f"Invalid argument {shown}, 'x-recent-history-length' must be a positive integer")
      for value, shown in [(0, "0"), (-1, "-1"), ("5", '<<"5">>'), (None, "undefined"), (True, "true"),
                           ([1], "[{signedint,1}]"), (Timestamp(5), "5")]),
])
def test_what_may_not_is_refused_in_rabbitmqs_words_where_it_has_any(type_, arguments, text):
    with pytest.raises(PreconditionFailed) as refusal:
        check_arguments(type_, arguments, THING)
    assert refusal.value.reply_text == f"PRECONDITION_FAILED - {text}"


def test_what_means_nothing_to_a_type_is_not_compared():
    assert compared_arguments("direct", {}) == EVERYWHERE
    of_hash = {"hash-header", "x-hash-on", "hash-property", "x-algorithm"}
    assert set(compared_arguments(HASH, {})) == {*EVERYWHERE, *of_hash}


def test_an_exchange_that_delays_compares_what_its_inner_type_does():
    assert {"x-delayed-type", "hash-header"} <= set(compared_arguments(DELAYED, {"x-delayed-type": HASH}))
    assert "hash-header" not in compared_arguments(DELAYED, {"x-delayed-type": "direct"})


def test_rabbitmqs_name_of_the_alternate_exchange_goes_before_lavinmqs():
    assert alternate_exchange({}) is None
    assert alternate_exchange({"x-alternate-exchange": "b"}) == "b"
    assert alternate_exchange({"x-alternate-exchange": "b", "alternate-exchange": "a"}) == "a"


def test_rows_are_for_types_that_there_are():
    assert {type_ for row in EXCHANGE_ARGUMENTS for type_ in row.types} <= set(EXCHANGE_TYPES)
