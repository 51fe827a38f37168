"""The rule of message groups that follows from arguments and policies, and the gate that is made of it."""

import pytest
from tests.plane.harness import Bench

from brokerd import plane
from brokerd.queues.groups import HEADERS, PROPERTIES, GroupRule, gate_of, rule_of
from brokerd.queues.rules import PLAIN, rules_of


@pytest.mark.parametrize(("arguments", "rule"), [
    ({"x-message-group": "off"}, None),
    ({"x-message-group": "exclusive"}, GroupRule()),
    ({"x-message-group": "sticky", "x-group-idle-timeout": 5}, GroupRule(sticky=True, idle_ms=5)),
    ({"x-message-group": "exclusive", "x-message-group-header": "customer"}, GroupRule(headers=("customer",))),
    ({"x-message-group": "exclusive", "x-message-group-header": "routing-key"},
     GroupRule(by="routing-key", headers=())),
    ({"qpid.group_header_key": "type"}, GroupRule(headers=("type",))),
    ({"qpid.group_header_key": "a", "x-message-group": "sticky"}, GroupRule(sticky=True, headers=("a",))),
    ({"x-message-group": "exclusive", "x-group-default": "single", "x-group-max-inflight": 7},
     GroupRule(keyless="single", most=7)),
])
def test_arguments_make_a_rule(arguments, rule):
    assert rules_of(arguments, {}).group == rule


def test_a_policy_may_ask_for_groups_and_the_argument_goes_before_it():
    definition = {"message-group": "sticky", "message-group-header": "c"}
    assert rules_of({}, definition).group == GroupRule(sticky=True, headers=("c",))
    assert rules_of({"x-message-group": "off"}, definition).group is None


def test_a_policy_for_groups_does_nothing_to_a_queue_with_a_single_active_consumer():
    assert rules_of({"x-single-active-consumer": True}, {"message-group": "sticky"}).group is None


def test_groups_wait_for_retries_without_jitter_and_are_parked_by_both_actions():
    given = {"x-message-group": "exclusive", "x-delayed-retry-type": "all", "x-delivery-limit": 3}
    rules = rules_of(given | {"x-delivery-limit-action": "park-group"}, {"delayed-retry-jitter": 50})
    assert rules.retry is not None
    assert (rules.retry.type, rules.retry.jitter, rules.limit_stops) == ("all", 0, True)
    assert rules_of(given | {"x-delivery-limit-action": "block"}, {}).limit_stops


def test_groups_alone_change_no_other_rule():
    assert rules_of({"x-message-group": "exclusive"}, {})._replace(group=None) == PLAIN


@pytest.mark.parametrize("by", ["header", *PROPERTIES])
def test_every_rule_has_a_gate(tmp_path, by):
    gate = gate_of(GroupRule(by=by, headers=HEADERS if by == "header" else ()), 3)
    bench = Bench(tmp_path)
    bench.queue(max_priority=3).gate = gate
    assert isinstance(gate, plane.Groups)
    bench.close()


def test_off_is_no_rule():
    assert rule_of({}) is None
