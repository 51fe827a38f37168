"""The keys of policies: what each may be, in RabbitMQ's words, and how two definitions become one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.policies.keys import KEYS, NOT_FOR, fault, format_json_term, merged
from brokerd.policies.policies import APPLY_TO

NUMBERS = {     # least, and what RabbitMQ 3.10 calls it (delivery-limit and the last rows: 4.x and ours)
    "expires": (1, "queue expiry"), "message-ttl": (0, "message TTL"), "max-length": (0, "maximum length"),
    "max-length-bytes": (0, "maximum length in bytes"), "max-in-memory-length": (0, "maximum memory in bytes"),
    "max-in-memory-bytes": (0, "maximum memory in bytes"), "delivery-limit": (-1, "delivery limit"),
    "stream-max-segment-size-bytes": (0, "segment size"), "initial-cluster-size": (0, "cluster size"),
    "queue-version": (1, "queue-version value"), "consumer-timeout": (0, "consumer timeout"),
    "group-max-inflight": (1, "group max inflight"), "group-idle-timeout": (0, "group idle timeout"),
    "order-journal-retention-bytes": (0, "order journal retention in bytes"),
}
CHOICES = {
    "overflow": ("reject-publish-dlx", "overflow value"), "queue-mode": ("lazy", "queue-mode value"),
    "dead-letter-strategy": ("at-least-once", "dead letter strategy"), "ha-mode": ("all", "ha-mode value"),
    "queue-leader-locator": ("balanced", "queue leader locator value"),
    "queue-master-locator": ("min-masters", "master locator"),
    "delivery-limit-action": ("drop", "delivery limit action"),
    "consumer-timeout-action": ("close", "consumer timeout action"),
    "message-group": ("sticky", "message group value"), "group-default": ("reject", "group default value"),
}
TEXTS = {
    "dead-letter-exchange": "dead letter exchange name", "dead-letter-routing-key": "dead letter routing key",
    "alternate-exchange": "alternate exchange name", "message-group-header": "message group header",
}
OPERATOR = {        # RabbitMQ 4.3, and our own
    "order-journal", "order-journal-retention-bytes", "order-journal-retention-age",
    "expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
    "delivery-limit", "queue-version", "overflow", "delayed-retry-type", "delayed-retry-min", "delayed-retry-max",
    "retention-age", "retention-bytes",
}
SHOWN = [("a", '<<"a">>'), (True, "true"), (1.5, "1.5"), (None, "null"), ([1, "a"], '[1,<<"a">>]')]


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_whole_and_not_below_the_least(key):
    least, called = NUMBERS[key]
    assert fault({key: least}, operator=False) is None
    assert fault({key: least - 1}, operator=False) == f"{least - 1} is not a valid {called}"
    for value, shown in SHOWN:
        assert fault({key: value}, operator=False) == f"{shown} is not a valid {called}"


def test_the_age_that_a_stream_keeps_is_a_number_with_its_unit():
    assert fault({"max-age": "7D"}, operator=False) is None
    for value, shown in [*SHOWN, (5, "5"), ("7", '<<"7">>')]:
        assert fault({"max-age": value}, operator=False) == f"{shown} is not a valid max age"


@pytest.mark.parametrize("key", CHOICES)
def test_a_choice_is_one_of_its_words(key):
    word, called = CHOICES[key]
    assert fault({key: word}, operator=False) is None
    for value, shown in [*SHOWN, (5, "5")]:
        assert fault({key: value}, operator=False) == f"{shown} is not a valid {called}"


@pytest.mark.parametrize("key", TEXTS)
def test_a_name_is_text(key):
    assert fault({key: "x"}, operator=False) is None
    for value, shown in [*SHOWN[1:], (5, "5")]:
        assert fault({key: value}, operator=False) == f"{shown} is not a valid {TEXTS[key]}"


def test_delayed_message_is_a_flag():
    assert fault({"delayed-message": True}, operator=False) is None
    assert fault({"delayed-message": "true"}, operator=False) == '<<"true">> is not a valid delayed-message value'


@pytest.mark.parametrize("key", sorted(KEYS))
def test_an_operator_policy_may_lower_limits_and_no_more(key):
    text = fault({key: object}, operator=True)
    assert text.endswith("are not recognised policy settings") is (key not in OPERATOR)


@pytest.mark.parametrize("key", ["max-priority", "single-active-consumer", "queue-type", "nonsense", "x-max-length"])
def test_what_is_no_key_is_not_recognised(key):
    text = f'[{{<<"{key}">>,1}},{{<<"other">>,#{{<<"a">> => 2}}}}] are not recognised policy settings'
    assert fault({key: 1, "max-length": -1, "other": {"a": 2}}, operator=False) == text


def test_the_first_fault_by_name_is_told():
    assert fault({"max-length": -1, "expires": 0}, operator=False) == "0 is not a valid queue expiry"


def test_a_dead_letter_routing_key_may_stand_alone():
    assert fault({"dead-letter-routing-key": "k"}, operator=False) is None


def test_what_a_kind_does_not_know_are_keys():
    assert set(NOT_FOR) == APPLY_TO["all"]
    assert set().union(*NOT_FOR.values()) <= set(KEYS)


def test_values_nested_too_deep_are_not_shown_whole():
    value = []
    for _ in range(5000):
        value = [value]
    assert format_json_term(value) == "[" * 8 + "..." + "]" * 8
    assert "..." in fault({"max-length": value}, operator=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8)


@given(st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=5), JSON, max_size=4), st.booleans())
def test_any_definition_is_taken_or_refused_in_words(definition, operator):
    text = fault(definition, operator=operator)
    assert text is None or " valid " in text or text.endswith(" recognised policy settings")


# --- merge rules

NO_LIMITS = {"queue-version", "order-journal-retention-bytes"}
DEFINITIONS = st.fixed_dictionaries({}, optional={
    **{key: st.integers(least, 20) for key, (least, _) in NUMBERS.items() if key in OPERATOR - NO_LIMITS},
    "overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
})
LIMITS = {key for key in NUMBERS if key in OPERATOR} - NO_LIMITS


@given(DEFINITIONS, DEFINITIONS)
def test_of_two_limits_the_lesser_holds_and_of_anything_else_the_operators(policy, operators):
    both = merged(policy, operators)
    assert both.keys() == policy.keys() | operators.keys()
    for key, value in both.items():
        given = [source[key] for source in (operators, policy) if key in source]
        if key == "delivery-limit":
            assert value == min([limit for limit in given if limit >= 0], default=-1)
        elif key in LIMITS:
            assert value == min(given)
        else:
            assert value == given[0]


@given(DEFINITIONS, DEFINITIONS)
def test_an_operator_policy_never_makes_a_limit_greater(policy, operators):
    both = merged(policy, operators)
    for key in LIMITS & policy.keys():
        before, after = policy[key], both[key]
        assert after <= before or before == -1


@given(DEFINITIONS)
def test_a_definition_with_itself_or_nothing_is_the_same(definition):
    assert merged(definition, definition) == merged(definition, {}) == merged({}, definition) == definition
