"""The table of queue arguments: what each may be, in which queue, and how a refusal reads.

Each refusal marked "3.10" below was had from a real RabbitMQ 3.10.8.
"""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.arguments import (
    BY_NAME,
    BY_POLICY_KEY,
    COMPARED_QUEUE_ARGUMENTS,
    EXPIRY_MS_MAX,
    INT64_MAX,
    QUEUE_ARGUMENTS,
    age_ms,
    fault,
    first_difference,
    lesser_limit,
)
from brokerd.errors import PreconditionFailed
from brokerd.queues.queue import check_arguments
from brokerd.wire.values import Float32, Int8, Int16, Int64, Timestamp, UInt8, UInt16, UInt32

Q = "queue 'q' in vhost '/'"
QUORUM = {"x-queue-type": "quorum"}
STREAM = {"x-queue-type": "stream"}
# Beside what makes the value possible at all.
BESIDE = {"x-dead-letter-routing-key": {"x-dead-letter-exchange": "d"}}
INTEGERS = {name: least for least, names in {
    0: ("x-message-ttl", "x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes",
        "x-max-priority", "x-consumer-timeout", "x-cache-size", "x-cache-ttl", "x-retention-bytes",
        "x-order-journal-retention-bytes", "x-group-idle-timeout", "x-delayed-retry-jitter"),
    1: ("x-expires", "x-quorum-initial-group-size", "x-group-max-inflight", "x-delayed-retry-min",
        "x-delayed-retry-max"),
    -1: ("x-delivery-limit",),
}.items() for name in names}
CHOICES = {
    "x-overflow": (("drop-head", "reject-publish", "reject-publish-dlx"), "invalid_overflow"),
    "x-dead-letter-strategy": (("at-most-once", "at-least-once"), "invalid_dlx_strategy"),
    "x-queue-mode": (("default", "lazy"), "\"unsupported queue mode 'x'\""),
    "x-queue-leader-locator": (("client-local", "balanced", "random", "least-leaders"), "invalid_queue_locator_arg"),
    "x-queue-master-locator": (("client-local", "min-masters", "random"), "invalid_queue_locator_arg"),
    "x-delivery-limit-action": (("dead-letter", "drop", "block"), "invalid_delivery_limit_action"),
    "x-delayed-retry-type": (("disabled", "all", "failed", "returned"),
                             "\"'x' is not disabled, all, failed or returned\""),
    "x-delayed-retry-backoff": (("linear", "exponential", "fixed"), "\"'x' is not linear, exponential or fixed\""),
    "x-delayed-retry-scope": (("message", "group"), "\"'x' is not message or group\""),
    "x-deduplication-scope": (("queue", "group", "waiting"), "\"'x' is not queue, group or waiting\""),
    "x-deduplication-action": (("ack", "nack", "dead-letter", "replace"),
                               "\"'x' is not ack, nack, dead-letter or replace\""),
    "x-consumer-timeout-action": (("return", "close"), "invalid_consumer_timeout_action"),
    "x-message-group": (("off", "exclusive", "sticky"),
                        "\"'x' is not off, exclusive or sticky\""),
    "x-group-default": (("free", "single", "reject"),
                        "\"'x' is not free, single or reject\""),
}
BOOLEANS = ("x-single-active-consumer", "x-message-deduplication", "x-deduplication-content", "x-order-journal")
STRINGS = ("x-dead-letter-routing-key", "x-deduplication-header")
HEADER_NAMES = ("x-message-group-header", "qpid.group_header_key")
OF_STREAMS = ("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes", "x-initial-cluster-size")
QUORUM_ONLY = ("x-dead-letter-strategy", "x-max-in-memory-length", "x-max-in-memory-bytes",
               "x-quorum-initial-group-size")
NOT_FOR_STREAMS = (
    "x-expires", "x-message-ttl", "x-dead-letter-routing-key", "x-max-priority", "x-overflow", "x-delivery-limit",
    "x-order-journal", "x-consumer-timeout", "x-queue-mode", "x-dead-letter-strategy",
)
CLASSIC_ONLY = ("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator")
WRONG = [b"bin", 1.5, Float32(1), Decimal("1.5"), Timestamp(5), None, [1], {"a": 1}]


def arguments_of(name, value):
    """The value in a queue of a type that may have the argument."""
    return (QUORUM if name in QUORUM_ONLY else {}) | BESIDE.get(name, {}) | {name: value}


def reason(name, value):
    """What the refusal ends with; None where there is none."""
    text = fault(arguments_of(name, value), Q)
    if text is None:
        return None
    start = f"invalid arg '{name}' for {Q}: "
    assert text.startswith(start)
    return text.removeprefix(start)


def test_every_row_is_tried_here():
    tried = {"x-queue-type", "x-dead-letter-exchange", "x-queue-version", "x-order-journal-retention-age",
             "x-retention-age", *INTEGERS, *CHOICES, *BOOLEANS, *STRINGS, *HEADER_NAMES, *OF_STREAMS}
    assert tried == set(BY_NAME)
    assert len(BY_NAME) == len(QUEUE_ARGUMENTS)


# --- values

@pytest.mark.parametrize("name", INTEGERS)
def test_a_number_may_have_any_integer_type(name):
    for value in (5, Int64(7), UInt8(3), Int8(3), Int16(3), UInt16(3), UInt32(3), max(INTEGERS[name], 0)):
        assert reason(name, value) is None


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(("value", "type_"), [
    ("a", "longstr"), (b"bin", "binary"), (True, "bool"), (1.5, "double"), (Decimal("1.5"), "decimal"),
    (Timestamp(5), "timestamp"), (None, "void"), ([1], "array"), ({"a": 1}, "table"),
])
def test_what_is_no_number_is_told_so(name, value, type_):      # 3.10
    assert reason(name, value) == f'"expected integer, got {type_}"'


@pytest.mark.parametrize(("name", "least"), INTEGERS.items())
def test_a_number_below_the_least_is_negative_or_zero(name, least):     # 3.10
    below = least - 1
    assert reason(name, below) == (f"{{value_negative,{below}}}" if below < 0 else "{value_zero,0}")


@pytest.mark.parametrize(("name", "most", "text"), [
    ("x-expires", EXPIRY_MS_MAX, "value_too_large"), ("x-message-ttl", EXPIRY_MS_MAX, "value_too_large"),     # 3.10
    ("x-consumer-timeout", EXPIRY_MS_MAX, "value_too_large"), ("x-cache-ttl", EXPIRY_MS_MAX, "value_too_large"),
    ("x-max-priority", 255, "max_value_exceeded"),      # 3.10
    ("x-max-length", INT64_MAX, "max_value_exceeded"),
])
def test_a_number_has_a_greatest_value(name, most, text):
    assert reason(name, most) is None
    assert reason(name, most + 1) == f"{{{text},{most + 1}}}"


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_its_words(name):       # 3.10, of those that it knows
    choices, refusal = CHOICES[name]
    assert [reason(name, choice) for choice in choices] == [None] * len(choices)
    assert reason(name, "x") == refusal
    assert reason(name, 5) == "{unacceptable_type,signedint}"
    assert reason(name, True) == "{unacceptable_type,bool}"


@pytest.mark.parametrize("name", BOOLEANS)
def test_a_flag_is_true_or_false(name):
    assert (reason(name, True), reason(name, False)) == (None, None)
    assert reason(name, 1) == "{unacceptable_type,signedint}"
    assert reason(name, "true") == "{unacceptable_type,longstr}"


@pytest.mark.parametrize(("text", "ms"), [
    ("7D", 604_800_000), ("1Y", 31_536_000_000), ("1M", 2_592_000_000), ("12h", 43_200_000), ("05m", 300_000),
    ("1s", 1000),
    ("", None), ("D", None), ("7", None), ("0D", None), ("7d", None), ("-1D", None), ("1 D", None), ("1.5h", None),
    ("7DD", None), ("\u0667D", None), ("1" * 16 + "s", None),
])
def test_an_age_is_a_number_from_one_and_its_unit(text, ms):
    assert age_ms(text) == ms
    assert reason("x-order-journal-retention-age", text) == (None if ms else "invalid_max_age")
    assert reason("x-order-journal-retention-age", 7) == "{unacceptable_type,signedint}"


@pytest.mark.parametrize("name", HEADER_NAMES)
def test_a_headers_name_is_a_text_that_is_not_empty(name):
    assert (reason(name, ""), reason(name, "{x}"), reason(name, 5)) == (
        '"an empty name"', None, "{unacceptable_type,signedint}")
    assert reason(name, "x" * 256) == '"256 octets, at most 255"'


@pytest.mark.parametrize("name", ["x-message-group", "qpid.group_header_key"])
def test_groups_and_a_single_active_consumer_exclude_each_other(name):
    text = fault({name: "sticky", "x-single-active-consumer": True}, Q)
    assert text == f"invalid arg '{name}' for {Q}: \"message groups and x-single-active-consumer exclude each other\""
    assert fault({name: "sticky", "x-single-active-consumer": False}, Q) is None
    assert fault({"x-message-group": "off", "x-single-active-consumer": True}, Q) is None


@pytest.mark.parametrize("name", STRINGS)
def test_a_text_is_any_text(name):
    assert (reason(name, ""), reason(name, "{x}")) == (None, None)
    assert reason(name, 2**40) == "{unacceptable_type,long}"


@pytest.mark.parametrize(("value", "text"), [
    (1, None), (2, None), (0, "\"unsupported queue version '0'\""), (3, "\"unsupported queue version '3'\""),
    (-1, "{value_negative,-1}"), ("2", '"expected integer, got longstr"'),
])
def test_a_queue_version_is_1_or_2(value, text):    # 3.10
    assert reason("x-queue-version", value) == text


@pytest.mark.parametrize(("value", "text"), [
    ("classic", None), ("quorum", None), ("stream", None), ("Classic", "\"unsupported queue type 'Classic'\""),
    ("", "\"unsupported queue type ''\""), (5, "{unacceptable_type,signedint}"), ([1], "{unacceptable_type,array}"),
])
def test_a_queue_type_is_one_of_three(value, text):     # 3.10
    assert reason("x-queue-type", value) == text


@pytest.mark.parametrize(("value", "type_"), [(5, "signedint"), (b"x", "binary"), (None, "void"), ({}, "table")])
def test_a_dead_letter_exchange_of_another_type_is_told_before_all_else(value, type_):      # 3.10
    text = f"invalid type '{type_}' for arg 'x-dead-letter-exchange' in {Q}"
    assert fault({"x-expires": "a", "x-dead-letter-exchange": value}, Q) == text
    assert fault({"x-queue-type": "quorum", "x-max-priority": 1, "x-dead-letter-exchange": value}, Q) == text
    assert fault({"x-dead-letter-exchange": ""}, Q) is None


def test_a_dead_letter_routing_key_needs_an_exchange():     # 3.10
    text = f"invalid arg 'x-dead-letter-routing-key' for {Q}: routing_key_but_no_dlx_defined"
    assert fault({"x-dead-letter-routing-key": "k"}, Q) == text
    assert fault({"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": "d"}, Q) is None


@pytest.mark.parametrize("name", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_names_that_dead_letters_carry_are_short_strings(name):
    for value in ("a" * 255, "ä" * 127, "\udcff" * 255):
        assert fault({"x-dead-letter-exchange": "d", name: value}, Q) is None
    for value, text in (("a" * 256, '"256 octets, at most 255"'), ("ä" * 128, '"256 octets, at most 255"'),
                        ("\ud800", '"no UTF-8"')):
        assert fault({"x-dead-letter-exchange": "d", name: value}, Q) == f"invalid arg '{name}' for {Q}: {text}"


def test_names_without_a_row_may_be_anything():     # 3.10
    for value in (*WRONG, 5, "a"):
        assert fault({"x-unknown": value, "x-ha-policy": value, "x-cancel-on-ha-failover": value}, Q) is None


# --- which queue may have which

@pytest.mark.parametrize(("names", "type_"), [
    (CLASSIC_ONLY, "quorum"), (QUORUM_ONLY, "classic"), (OF_STREAMS, "classic"), (OF_STREAMS, "quorum"),
    (NOT_FOR_STREAMS, "stream"),
])
def test_an_argument_of_another_queue_type_is_refused_whatever_its_value(names, type_):     # 3.10
    for name in names:
        for value in (5, -1, "a", True):
            assert fault({"x-queue-type": type_, name: value}, Q) == (
                f"invalid arg '{name}' for {Q} of queue type rabbit_{type_}_queue")


@pytest.mark.parametrize("name", sorted({*BY_NAME} - {*CLASSIC_ONLY, *QUORUM_ONLY, *OF_STREAMS}))
def test_all_others_are_for_both(name):
    assert {"classic", "quorum"} <= set(BY_NAME[name].types)


@pytest.mark.parametrize(("arguments", "text"), [
    ({"x-overflow": "a", "x-expires": "a"}, f"'x-expires' for {Q}: \"expected integer, got longstr\""),
    ({"x-overflow": "a", "x-max-priority": -1, "x-queue-mode": "b"},
     f"'x-max-priority' for {Q}: {{value_negative,-1}}"),
    ({"x-max-age": "1h", "x-expires": "a"}, f"'x-expires' for {Q}: \"expected integer, got longstr\""),
    ({"x-max-age": "1h", "x-max-in-memory-length": 1}, f"'x-max-age' for {Q} of queue type rabbit_classic_queue"),
    ({"x-max-in-memory-length": 1, "x-max-age": "1h"},
     f"'x-max-in-memory-length' for {Q} of queue type rabbit_classic_queue"),
    ({"x-queue-type": "quorum", "x-max-priority": 1, "x-overflow": "a"}, f"'x-overflow' for {Q}: invalid_overflow"),
    ({"x-expires": "a", "x-queue-type": "a"}, f"'x-queue-type' for {Q}: \"unsupported queue type 'a'\""),
])
def test_of_several_faults_rabbitmqs_is_told(arguments, text):      # 3.10
    assert fault(arguments, Q) == f"invalid arg {text}"


@pytest.mark.parametrize(("properties", "fault_"), [
    ({"durable": False, "exclusive": True, "auto_delete": True}, "auto-delete"),
    ({"durable": False, "exclusive": True}, "exclusive-owner"), ({"exclusive": True}, "exclusive-owner"),
    ({"durable": False}, "non-durable"),
])
def test_properties_that_a_quorum_queue_cannot_have(properties, fault_):        # 3.10
    with pytest.raises(PreconditionFailed, match=f"^invalid property '{fault_}' for {Q}$"):
        check_arguments("q", "/", QUORUM, **properties)
    check_arguments("q", "/", {}, **properties)
    check_arguments("q", "/", QUORUM)
    with pytest.raises(PreconditionFailed, match="^invalid arg 'x-expires'"):
        check_arguments("q", "/", QUORUM | {"x-expires": 0}, **properties)


@pytest.mark.parametrize(("properties", "fault_"), [
    ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
    ({"exclusive": True}, "exclusive-owner"), ({"durable": False}, "non-durable"),
])
def test_properties_that_a_stream_cannot_have(properties, fault_):        # 3.10
    with pytest.raises(PreconditionFailed, match=f"^invalid property '{fault_}' for {Q}$"):
        check_arguments("q", "/", STREAM, **properties)
    check_arguments("q", "/", STREAM | {"x-max-age": "1h", "x-max-length": 5, "x-max-length-bytes": 5})


@pytest.mark.parametrize("value", ["1", "h", "1w", "", "0h", "-1h"])
def test_the_age_of_messages_in_a_stream_is_a_number_with_its_unit(value):      # 3.10
    assert fault(STREAM | {"x-max-age": value}, Q) == f"invalid arg 'x-max-age' for {Q}: invalid_max_age"


VALUES = st.one_of(
    st.integers(-5, 300), st.integers(), st.text(max_size=5), st.booleans(), st.none(), st.floats(),
    st.sampled_from(["quorum", "classic", "stream", "drop-head", "lazy", "{}", "at-least-once"]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), st.binary(),
)
ARGUMENTS = st.dictionaries(st.sampled_from([*BY_NAME, "x-other"]), VALUES, max_size=6)


@given(ARGUMENTS)
def test_any_arguments_are_taken_or_refused_in_words(arguments):
    refused = None
    try:
        check_arguments("q", "/", arguments)
    except PreconditionFailed as error:
        refused = error
    assert refused is None or Q in refused.reply_text


@given(ARGUMENTS, ARGUMENTS)
def test_any_two_declares_are_compared_in_words(one, other):
    text = first_difference(one, other, COMPARED_QUEUE_ARGUMENTS)
    assert text is None or f" for {Q}: received " in text.format(Q)
    assert first_difference(one, one, COMPARED_QUEUE_ARGUMENTS) is None or any(
        value != value for value in one.values())


# --- redeclare

def differs(current, received):
    text = first_difference(current, received, COMPARED_QUEUE_ARGUMENTS)
    return text and text.format(Q)


def test_whole_numbers_are_one_type_and_a_missing_type_is_classic():
    assert differs({"x-expires": 5}, {"x-expires": Int64(5)}) is None
    assert differs({"x-expires": UInt16(5)}, {"x-expires": 5}) is None
    assert differs({}, {"x-queue-type": "classic"}) is None
    assert differs({"x-queue-type": "classic"}, {}) is None
    assert differs({"x-unknown": 5}, {"x-unknown": 6}) is None


@pytest.mark.parametrize(("current", "received", "text"), [
    ({"x-expires": 5}, {"x-expires": 6}, f"'x-expires' for {Q}: received '6' but current is '5'"),
    ({"x-expires": 5}, {}, f"'x-expires' for {Q}: received none but current is the value '5' of type 'signedint'"),
    ({}, {"x-expires": "a"}, f"'x-expires' for {Q}: received the value 'a' of type 'longstr' but current is none"),
    ({"x-expires": 5}, {"x-expires": "a"}, f"'x-expires' for {Q}: received 'a' but current is '5'"),
    ({}, QUORUM, f"'x-queue-type' for {Q}: received 'quorum' but current is 'classic'"),     # 4.x; 3.10 says none
    (QUORUM, {}, f"'x-queue-type' for {Q}: received 'classic' but current is 'quorum'"),
    (QUORUM, {"x-queue-type": "classic"}, f"'x-queue-type' for {Q}: received 'classic' but current is 'quorum'"),
    ({"x-single-active-consumer": False}, {},
     f"'x-single-active-consumer' for {Q}: received none but current is the value 'false' of type 'bool'"),
    ({"x-single-active-consumer": True}, {"x-single-active-consumer": False},
     f"'x-single-active-consumer' for {Q}: received 'false' but current is 'true'"),
    ({"x-message-ttl": 1, "x-dead-letter-exchange": "x"}, {"x-dead-letter-exchange": "y", "x-message-ttl": 2},
     f"'x-message-ttl' for {Q}: received '2' but current is '1'"),
])
def test_what_differs_is_named_as_rabbitmq_names_it(current, received, text):       # 3.10
    assert differs(current, received) == text


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (5, Timestamp(5)), ("a", b"a"), (0, None)])
def test_values_of_other_types_differ_though_they_look_equal(one, other):
    assert differs({"x-max-length": one}, {"x-max-length": other}) is not None
    assert differs({"x-max-length": other}, {"x-max-length": one}) is not None


@pytest.mark.parametrize("name", COMPARED_QUEUE_ARGUMENTS)
def test_every_argument_is_compared(name):
    assert differs({name: "a"}, {name: "b"}) == f"'{name}' for {Q}: received 'b' but current is 'a'"


def test_names_in_braces_are_shown_as_they_are():
    text = f"'x-dead-letter-exchange' for {Q}: received '{{0}}' but current is '{{'"
    assert differs({"x-dead-letter-exchange": "{"}, {"x-dead-letter-exchange": "{0}"}) == text


# --- policy keys

def test_a_policy_key_is_the_argument_without_its_x():
    assert {key: row.name for key, row in BY_POLICY_KEY.items()} == {key: f"x-{key}" for key in BY_POLICY_KEY}


def test_neither_priorities_nor_a_single_consumer_nor_the_type_come_by_policy():
    assert not {"max-priority", "single-active-consumer", "queue-type"} & set(BY_POLICY_KEY)


@given(st.integers(-1, 5), st.integers(-1, 5))
def test_the_lesser_limit_holds_and_no_limit_is_no_less(one, other):
    merge = lesser_limit(-1)
    limits = [limit for limit in (one, other) if limit >= 0]
    assert merge(one, other) == merge(other, one) == min(limits, default=-1)


# --- order journals

@pytest.mark.parametrize("how", [{"durable": False}, {"exclusive": True}])
def test_only_a_durable_queue_can_ask_for_an_order_journal(how):
    with pytest.raises(PreconditionFailed, match=(
            f"invalid arg 'x-order-journal' for {Q}: only a durable queue can have an order journal")):
        check_arguments("q", "/", {"x-order-journal": True}, **how)
    check_arguments("q", "/", {"x-order-journal": False}, **how)
    check_arguments("q", "/", {"x-order-journal": True})
    check_arguments("q", "/", {"x-order-journal": True, **QUORUM})


@pytest.mark.parametrize(("value", "refusal"), [
    ("7D", None), ("12h", None), (0, None), (86_400_000, None),
    ("7", "\"'7' is not a number and one of Y, M, D, h, m, s\""),
    ("", "\"'' is not a number and one of Y, M, D, h, m, s\""),
    (-1, "{value_negative,-1}"), (1 << 50, "{value_too_large,1125899906842624}"), (True, "{unacceptable_type,bool}")])
def test_a_retention_is_a_time_with_its_unit_or_milliseconds(value, refusal):
    assert reason("x-retention-age", value) == refusal


# --- delayed retry


def test_the_longest_delay_is_not_below_the_shortest():
    retry = {"x-delayed-retry-min": 100, "x-delayed-retry-max": 99}
    assert fault(retry, "queue 'q' in vhost '/'") == (
        "invalid arg 'x-delayed-retry-max' for queue 'q' in vhost '/': \"99 is below x-delayed-retry-min, 100\"")
    assert fault({**retry, "x-delayed-retry-max": 100}, "queue") is None


def test_jitter_is_a_percentage():
    assert fault({"x-delayed-retry-jitter": 100}, "queue") is None
    assert fault({"x-delayed-retry-jitter": 101}, "queue") is not None


@pytest.mark.parametrize(("name", "value", "allowed", "reason"), [
    ("x-delayed-retry-scope", "message", "group", "message groups exclude 'message'"),
    ("x-delayed-retry-jitter", 10, 0, "in a message group there is no jitter")])
def test_message_groups_exclude_what_would_break_their_order(name, value, allowed, reason):
    assert fault({name: value, "x-message-group": "sticky"}, "queue q") == (
        f"invalid arg '{name}' for queue q: \"{reason}\"")
    assert fault({name: value, "x-message-group": "off"}, "queue q") is None
    assert fault({name: allowed, "qpid.group_header_key": "customer"}, "queue q") is None
