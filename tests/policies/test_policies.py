"""Policies: which apply to a name, in which order, and what is in policies.json."""

import json

import pytest

from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.policies import Policies, Policy
from brokerd.store.disk import Disk

DEFINITION = {"max-length": 5}


@pytest.fixture
def policies(tmp_path):
    return Policies(str(tmp_path), Disk())


def again(policies: Policies) -> Policies:
    return Policies(policies.path.rpartition("/")[0], Disk())


def entry(**changes) -> dict:
    given = {key.replace("_", "-"): value for key, value in changes.items()}
    return {"name": "a", "pattern": "", "definition": DEFINITION, **given}


def names(found: list[Policy]) -> list[str]:
    return [policy.name for policy in found]


def test_a_missing_file_holds_no_policies_and_none_is_made(policies, tmp_path):
    assert list(policies) == []
    assert list(tmp_path.iterdir()) == []


def test_the_highest_priority_comes_first_and_then_the_first_by_name(policies):
    for name, priority in [("c", 0), ("b", 0), ("low", -1), ("high", 7)]:
        policies.put(Policy(name, "", DEFINITION, priority=priority))
    assert names(policies.matching("orders", "classic_queues")) == ["high", "b", "c", "low"]


@pytest.mark.parametrize(("pattern", "name", "matches"), [
    ("", "orders", True), (".*", "orders", True), ("rder", "orders", True), ("^rder", "orders", False),
    ("^$", "orders", False),
])
def test_a_pattern_is_searched_for_in_the_name(policies, pattern, name, matches):
    policies.put(Policy("p", pattern, DEFINITION))
    assert bool(policies.matching(name, "exchanges")) is matches


@pytest.mark.parametrize(("apply_to", "kinds"), [
    ("all", {"classic_queues", "quorum_queues", "streams", "exchanges"}),
    ("queues", {"classic_queues", "quorum_queues", "streams"}),
    ("classic_queues", {"classic_queues"}),
    ("quorum_queues", {"quorum_queues"}),
    ("streams", {"streams"}),
    ("exchanges", {"exchanges"}),
])
def test_a_policy_applies_to_its_kinds_only(policies, apply_to, kinds):
    policies.put(Policy("p", "", DEFINITION, apply_to=apply_to))
    found = {kind for kind in ("classic_queues", "quorum_queues", "streams", "exchanges")
             if policies.matching("x", kind)}
    assert found == kinds


def test_policies_survive_a_restart(policies):
    policies.put(Policy("p", "^x", {"message-ttl": 5, "dead-letter-exchange": "grün"}, apply_to="queues", priority=3))
    policies.put(Policy("q", "", DEFINITION))
    policies.put(Policy("q", "new", DEFINITION))
    assert [policy.entry() for policy in again(policies)] == [
        {"name": "p", "pattern": "^x", "apply-to": "queues",
         "definition": {"message-ttl": 5, "dead-letter-exchange": "grün"}, "priority": 3},
        {"name": "q", "pattern": "new", "apply-to": "all", "definition": DEFINITION, "priority": 0}]


def test_a_deleted_policy_is_gone_also_after_a_restart(policies):
    policies.put(Policy("p", "", DEFINITION))
    policies.delete("p")
    assert len(policies) == len(again(policies)) == 0
    with pytest.raises(NotFound, match="^no policy 'p'$"):
        policies.delete("p")


@pytest.mark.parametrize(("content", "told"), [
    (entry(name=""), "policy name '' is not printable text"),
    (entry(name=5), "policy name 5 is not printable text"),
    (entry(pattern="("), "pattern of policy 'a' is no regular expression"),
    (entry(pattern=5), "pattern of policy 'a' is no regular expression"),
    (entry(definition={}), "definition of policy 'a' is not an object"),
    (entry(definition=[1]), "definition of policy 'a' is not an object"),
    (entry(apply_to="things"), "apply-to of policy 'a' is not one of all, queues"),
    (entry(apply_to=[]), "apply-to of policy 'a' is not one of all, queues"),
    (entry(priority="1"), "priority of policy 'a' is not a whole number"),
    (entry(priority=True), "priority of policy 'a' is not a whole number"),
])
def test_an_entry_that_cannot_be_used_is_named(tmp_path, content, told):
    with pytest.raises(PreconditionFailed, match="^" + told.replace("(", "\\(")):
        Policy.from_entry(content)
    (tmp_path / "policies.json").write_text(json.dumps([content]))
    with pytest.raises(StoreError) as caught:
        Policies(str(tmp_path), Disk())
    assert str(caught.value).startswith(f"{tmp_path}/policies.json: {told}")


def test_one_name_cannot_be_there_twice(tmp_path):
    (tmp_path / "policies.json").write_text(json.dumps([entry(), entry(pattern="x")]))
    with pytest.raises(StoreError, match="policy 'a' is there twice$"):
        Policies(str(tmp_path), Disk())
