"""The rules of a queue: what its arguments, its policy and its operator policy make together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd import plane
from brokerd.arguments import BY_NAME, BY_POLICY_KEY, INT64_MAX
from brokerd.queues.dead_letter import DeadLetterRule
from brokerd.queues.deduplication import Rule as Duplicates
from brokerd.queues.rules import (
    PLAIN,
    RETENTION_MS,
    RETENTION_OCTETS,
    ROWS,
    Rules,
    asks_for_journal,
    effective_arguments,
    max_priority_of,
    plane_rules,
    rules_of,
)

QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(("arguments", "rules"), [
    ({"x-message-ttl": 0}, {"message_ttl_ms": 0}),
    ({"x-expires": 5}, {"expires_ms": 5}),
    ({"x-max-length": 0}, {"max_length": 0}),
    ({"x-max-length-bytes": 7}, {"max_octets": 7}),
    ({"x-overflow": "reject-publish"}, {"overflow": "reject-publish"}),
    ({"x-dead-letter-exchange": "d"}, {"dead_letter": DeadLetterRule("d")}),
    ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"}, {"dead_letter": DeadLetterRule("", "k")}),
    ({"x-dead-letter-exchange": "d", "x-dead-letter-strategy": "at-least-once", **QUORUM},
     {"dead_letter": DeadLetterRule("d", None, True), "delivery_counts": True}),
    ({"x-delivery-limit": 3}, {"delivery_limit": 3, "delivery_counts": True}),
    ({"x-delivery-limit": -1}, {}),
    ({"x-delivery-limit": 3, "x-delivery-limit-action": "drop"},
     {"delivery_limit": 3, "delivery_counts": True, "delivery_limit_action": "drop"}),
    ({"x-single-active-consumer": True}, {"single_active": True}),
    ({"x-single-active-consumer": False}, {}),
    ({"x-consumer-timeout": 9}, {"consumer_timeout_ms": 9}),
    ({"x-consumer-timeout": 0}, {}),
    ({"x-consumer-timeout-action": "close"}, {"consumer_timeout_action": "close"}),
    ({"x-message-deduplication": False}, {}),
    ({"x-message-deduplication": True}, {"deduplication": Duplicates()}),
    ({"x-message-deduplication": True, "x-deduplication-header": "h", "x-cache-size": 1, "x-cache-ttl": 2},
     {"deduplication": Duplicates("h", 1, 2)}),
    ({"x-deduplication-header": "h", "x-cache-size": 1, "x-cache-ttl": 2}, {}),
    (QUORUM, {"delivery_counts": True}),
    ({"x-queue-type": "classic"}, {}),
    ({"x-max-priority": 5}, {}),
    ({"x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-master-locator": "min-masters"}, {}),
    ({"x-queue-leader-locator": "balanced"}, {}),
    ({"x-max-in-memory-length": 1, "x-quorum-initial-group-size": 3, **QUORUM}, {"delivery_counts": True}),
    ({"x-order-journal": True}, {"journal": True}),
    ({"x-order-journal": False}, {}),
    ({"x-order-journal": True, "x-order-journal-retention-bytes": 0, "x-order-journal-retention-age": "2h"},
     {"journal": True, "retention_octets": 0, "retention_ms": 7_200_000}),
    ({"x-unknown": 1}, {}),
])
def test_each_argument_is_one_rule(arguments, rules):
    assert rules_of(arguments, {}) == Rules(**rules)


def test_a_queue_without_rules_shares_the_plain_ones():
    for arguments in ({}, {"x-unknown": 1}, {"x-queue-type": "classic"}):
        assert rules_of(arguments, {}) is PLAIN


@pytest.mark.parametrize(("arguments", "definition", "rules"), [
    ({}, {"max-length": 5, "overflow": "reject-publish"}, {"max_length": 5, "overflow": "reject-publish"}),
    ({"x-max-length": 3}, {"max-length": 5}, {"max_length": 3}),
    ({"x-max-length": 7}, {"max-length": 5}, {"max_length": 5}),
    ({"x-overflow": "drop-head"}, {"overflow": "reject-publish"}, {}),
    ({"x-dead-letter-exchange": "a"}, {"dead-letter-exchange": "p", "dead-letter-routing-key": "k"},
     {"dead_letter": DeadLetterRule("a", "k")}),
    ({}, {"dead-letter-routing-key": "k"}, {}),
    ({"x-delivery-limit": -1}, {"delivery-limit": 4}, {"delivery_limit": 4, "delivery_counts": True}),
    ({"x-consumer-timeout": 0}, {"consumer-timeout": 4}, {"consumer_timeout_ms": 4}),
    ({}, {"consumer-timeout-action": "close", "delivery-limit-action": "drop"},
     {"consumer_timeout_action": "close", "delivery_limit_action": "drop"}),
    ({}, {"alternate-exchange": "x", "queue-mode": "lazy", "ha-mode": "all", "max-age": "1h"}, {}),
])
def test_a_policy_joins_the_arguments(arguments, definition, rules):
    assert rules_of(arguments, definition) == Rules(**rules)


@pytest.mark.parametrize("arguments", [
    {"x-overflow": "keep-all"}, {"x-consumer-timeout": "a"}, {"x-delivery-limit-action": "park"},
    {"x-dead-letter-strategy": "at-least-once"}, {"x-message-deduplication": "yes"}, {"x-cache-size": -1},
])
def test_what_could_not_be_declared_any_more_is_as_if_it_were_not_there(arguments):
    assert rules_of({"x-max-length": 1, **arguments}, {}) == Rules(max_length=1)


@pytest.mark.parametrize(("arguments", "priority"), [
    ({}, 0), ({"x-max-priority": 0}, 0), ({"x-max-priority": 255}, 255), ({"x-max-priority": 256}, 0),
    ({"x-max-priority": "5"}, 0), ({"x-max-priority": 5, **QUORUM}, 0),
])
def test_the_highest_priority_is_an_argument_of_classic_queues(arguments, priority):
    assert max_priority_of(arguments) == priority


# --- what the data plane is told

def test_a_plain_queue_has_no_rules_in_the_data_plane():
    assert plane_rules(PLAIN) == {
        "ttl_ms": -1, "max_length": -1, "max_octets": -1, "overflow": 0, "dead_letters": False, "delivery_limit": -1,
        "limit_drops": False, "limit_stops": False, "delivery_counts": False, "single_active": False,
        "consumer_timeout_ms": -1, "timeout_closes": False, "retain_ms": -1, "retain_octets": -1,
    }


@pytest.mark.parametrize(("overflow", "number"), [("drop-head", 0), ("reject-publish", 1), ("reject-publish-dlx", 2)])
def test_overflow_is_a_number_there(overflow, number):
    assert plane_rules(Rules(overflow=overflow))["overflow"] == number


def test_all_rules_of_the_data_plane_are_told():
    rules = Rules(message_ttl_ms=1, max_length=2, max_octets=3, overflow="reject-publish-dlx",
                  dead_letter=DeadLetterRule("d"), delivery_limit=4, delivery_limit_action="drop",
                  delivery_counts=True, single_active=True, consumer_timeout_ms=5, consumer_timeout_action="close",
                  retain_ms=6, retain_octets=7)
    assert plane_rules(rules) == {
        "ttl_ms": 1, "max_length": 2, "max_octets": 3, "overflow": 2, "dead_letters": True, "delivery_limit": 5,
        "limit_drops": True, "limit_stops": False, "delivery_counts": True, "single_active": True,
        "consumer_timeout_ms": 5, "timeout_closes": True, "retain_ms": 6, "retain_octets": 7,
    }


@pytest.mark.parametrize(("limit", "dies_of"), [(None, -1), (0, 1), (2, 3)])
def test_with_a_delivery_limit_a_message_comes_back_so_often_and_dies_of_the_next_failure(limit, dies_of):
    assert plane_rules(Rules(delivery_limit=limit))["delivery_limit"] == dies_of


def test_a_delivery_limit_beyond_counting_is_as_great_as_can_be():
    assert plane_rules(rules_of({"x-delivery-limit": INT64_MAX}, {}))["delivery_limit"] == (1 << 31) - 1


# --- merge rules

LIMITS = ("x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes")
ARGUMENTS = st.fixed_dictionaries({}, optional={
    **{name: st.integers(1, 20) for name in LIMITS},
    "x-delivery-limit": st.integers(-1, 5), "x-consumer-timeout": st.integers(0, 5),
    "x-overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
    "x-dead-letter-exchange": st.sampled_from(["", "a", "b"]),
    "x-single-active-consumer": st.booleans(), "x-max-priority": st.integers(0, 255),
    "x-delivery-limit-action": st.sampled_from(["dead-letter", "drop"]),
})
DEFINITIONS = ARGUMENTS.map(lambda arguments: {
    BY_NAME[name].policy_key: value for name, value in arguments.items() if BY_NAME[name].policy_key})


@given(ARGUMENTS, DEFINITIONS)
def test_of_numbers_the_lesser_holds_else_the_argument(arguments, definition):
    merged = effective_arguments(arguments, definition)
    assert merged.keys() == arguments.keys() | {f"x-{key}" for key in definition}
    for name, value in merged.items():
        both = [source[key] for source, key in ((arguments, name), (definition, name[2:])) if key in source]
        if name in LIMITS:
            assert value == min(both)
        elif name in ("x-delivery-limit", "x-consumer-timeout"):
            none = -1 if name == "x-delivery-limit" else 0
            assert value == min([limit for limit in both if limit != none], default=none)
        else:
            assert value == both[0]


@given(ARGUMENTS, DEFINITIONS)
def test_a_policy_never_gives_priorities_or_a_single_active_consumer(arguments, definition):
    with_both = {**definition, "max-priority": 9, "single-active-consumer": True}
    merged = effective_arguments(arguments, with_both)
    for name in ("x-max-priority", "x-single-active-consumer"):
        assert merged.get(name) == arguments.get(name)
    assert rules_of(arguments, with_both).single_active is arguments.get("x-single-active-consumer", False)


@given(ARGUMENTS, DEFINITIONS)
def test_a_policy_that_was_taken_away_leaves_nothing(arguments, definition):
    assert rules_of(arguments, {}) == rules_of(dict(arguments), {})
    assert effective_arguments(effective_arguments(arguments, definition), definition) == effective_arguments(
        arguments, definition)


@given(st.dictionaries(st.sampled_from([*BY_NAME]), st.integers(-2, INT64_MAX) | st.text(max_size=4) | st.booleans()),
       DEFINITIONS)
def test_any_arguments_and_any_policy_make_rules_that_the_data_plane_takes(arguments, definition):
    told = plane_rules(rules_of(arguments, definition))
    for name in ("ttl_ms", "max_length", "max_octets", "delivery_limit", "consumer_timeout_ms"):
        assert type(told[name]) is int
        assert -1 <= told[name] <= INT64_MAX
    assert told["overflow"] in (0, 1, 2)
    assert {type(told[name]) for name in ("dead_letters", "delivery_counts", "single_active")} == {bool}


def test_keys_of_policies_are_known_to_the_rules():
    assert {"expires", "message-ttl", "dead-letter-exchange", "consumer-timeout"} <= set(BY_POLICY_KEY)


# --- order journals

@pytest.mark.parametrize(("arguments", "definition", "journal", "octets", "ms"), [
    ({}, {}, False, RETENTION_OCTETS, RETENTION_MS),
    ({}, {"order-journal": True}, True, RETENTION_OCTETS, RETENTION_MS),
    ({"x-order-journal": False}, {"order-journal": True}, False, RETENTION_OCTETS, RETENTION_MS),
    ({"x-order-journal": True}, {"order-journal": False}, True, RETENTION_OCTETS, RETENTION_MS),
    ({"x-order-journal-retention-bytes": 9, "x-order-journal-retention-age": "2s"},
     {"order-journal": True, "order-journal-retention-bytes": 5, "order-journal-retention-age": "1s"}, True, 9, 2000),
    (QUORUM, {"order-journal": True, "order-journal-retention-bytes": 5}, True, 5, RETENTION_MS),
])
def test_the_argument_of_an_order_journal_wins_over_the_policy(arguments, definition, journal, octets, ms):
    rules = rules_of(arguments, definition)
    assert (rules.journal, rules.retention_octets, rules.retention_ms) == (journal, octets, ms)
    assert asks_for_journal(arguments, definition) is journal


def test_each_rule_of_the_data_plane_follows_from_one_row():
    told = [row.plane for row in ROWS if row.plane]
    assert sorted(told) == sorted(plane.RULES)


def test_each_field_of_rules_follows_from_one_row_and_its_argument_is_one():
    assert [row.field for row in ROWS] == list(Rules._fields)
    arguments = [row.argument for row in ROWS if row.argument]
    assert len(arguments) == len(set(arguments))
    assert set(arguments) <= set(BY_NAME)


@pytest.mark.parametrize("name", sorted(plane.RULES))
def test_what_the_data_plane_is_told_of_no_rule_is_what_it_has_without(name):
    assert plane_rules(PLAIN)[name] == plane.RULES[name][3]
