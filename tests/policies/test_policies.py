"""Policies: which apply to a name, in which order, what they make together, and what is in their files."""

import json
import os

import pytest

from brokerd import pieces
from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.policies import Effective, Policies, Policy
from brokerd.policies import policies as module
from brokerd.policies.policies import SearchGoesOn
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


def matches(policies: Policies, name: str, kind: str) -> bool:
    return policies.effective(name, kind).policy is not None


def operator(name: str, definition: dict, **more) -> Policy:
    return Policy(name, more.pop("pattern", ""), definition, operator=True, **more)


def test_a_missing_file_holds_no_policies_and_none_is_made(policies, tmp_path):
    assert list(policies) == []
    assert not policies
    assert list(tmp_path.iterdir()) == []


def test_the_highest_priority_comes_first_and_then_the_first_by_name(policies):
    for name, priority in [("c", 0), ("b", 0), ("low", -1), ("high", 7), ("half", 0.5)]:
        policies.put(Policy(name, "", DEFINITION, priority=priority))
    found = []
    while policies:
        found.append(policies.effective("orders", "classic_queues").policy)
        policies.delete(found[-1])
    assert found == ["high", "half", "b", "c", "low"]


@pytest.mark.parametrize(("pattern", "name", "found"), [
    ("", "orders", True), (".*", "orders", True), ("rder", "orders", True), ("^rder", "orders", False),
    ("^$", "orders", False),
])
def test_a_pattern_is_searched_for_in_the_name(policies, pattern, name, found):
    policies.put(Policy("p", pattern, DEFINITION))
    assert matches(policies, name, "exchanges") is found


@pytest.mark.parametrize(("apply_to", "kinds"), [
    ("all", {"classic_queues", "quorum_queues", "streams", "exchanges"}),
    ("queues", {"classic_queues", "quorum_queues", "streams"}),
    ("classic_queues", {"classic_queues"}),
    ("quorum_queues", {"quorum_queues"}),
    ("streams", {"streams"}),
    ("exchanges", {"exchanges"}),
])
def test_a_policy_applies_to_its_kinds_only(policies, apply_to, kinds):
    policies.put(Policy("p", "", {"max-length-bytes": 1}, apply_to=apply_to))
    found = {kind for kind in ("classic_queues", "quorum_queues", "streams", "exchanges")
             if matches(policies, "x", kind)}
    assert found == kinds


@pytest.mark.parametrize(("key", "value", "kind", "applies"), [
    ("dead-letter-strategy", "at-least-once", "classic_queues", False),
    ("dead-letter-strategy", "at-least-once", "quorum_queues", True),
    ("queue-mode", "lazy", "quorum_queues", False), ("queue-mode", "lazy", "classic_queues", True),
    ("queue-version", 2, "quorum_queues", True), ("ha-mode", "all", "quorum_queues", False),
    ("max-age", "1h", "classic_queues", False), ("delivery-limit", 3, "classic_queues", True),
])
def test_a_policy_with_a_key_that_a_type_does_not_know_is_passed_over_whole(policies, key, value, kind, applies):
    policies.put(Policy("high", "", {"max-length": 9, key: value}, priority=1))
    policies.put(Policy("low", "", DEFINITION))
    assert policies.effective("q", kind).policy == ("high" if applies else "low")


# --- both sorts together

def test_without_policies_nothing_applies(policies):
    assert policies.effective("q", "classic_queues") == Effective(None, None, {})
    policies.put(Policy("p", "^x", DEFINITION))
    assert policies
    assert policies.effective("q", "classic_queues") == Effective(None, None, {})


def test_one_policy_and_one_operator_policy_apply_and_of_numbers_the_lesser(policies):      # RabbitMQ 3.10
    policies.put(Policy("p", "^mm", {"max-length": 10, "expires": 10**9, "overflow": "reject-publish"}, priority=2))
    policies.put(Policy("less", "^mm", {"message-ttl": 1}))
    policies.operators.put(operator("o", {"max-length": 5, "message-ttl": 7}, apply_to="queues"))
    assert policies.effective("mm", "classic_queues") == Effective("p", "o", {
        "expires": 10**9, "max-length": 5, "message-ttl": 7, "overflow": "reject-publish"})
    assert policies.effective("other", "quorum_queues") == Effective(None, "o", {"max-length": 5, "message-ttl": 7})
    assert policies.effective("mm", "exchanges").operator_policy is None


def test_an_operator_policy_alone_makes_policies_true(policies):
    policies.operators.put(operator("o", DEFINITION))
    assert policies
    assert len(policies) == 0


# --- searches that take long

@pytest.fixture
def ends_at_once(monkeypatch):
    """A piece of work ends wherever it may."""
    monkeypatch.setattr(pieces, "PIECE_NS", 0)


class Node:
    """What a search that goes on needs of a node."""

    def __init__(self):
        self.core = self
        self.errands = []

    def add_errand(self, step):
        self.errands.append(step)

    def turn(self):
        self.errands = [step for step in self.errands if not step()]


def ask(policies, node, name="q", kind="classic_queues"):
    """Ask as a caller does: how many turns pass before the policies of the name are known."""
    told = []
    try:
        policies.check_known(name, kind)
    except SearchGoesOn as missing:
        missing.find_out(node, lambda: told.append(name))
        turns = 0
        while not told:
            node.turn()
            turns += 1
        return turns
    return 0


def test_a_search_of_many_policies_takes_turns_and_is_not_done_twice(policies, ends_at_once):
    looked = []
    policies.changed([Policy(f"{number}", "x", DEFINITION) for number in range(50)]).do()
    for each in policies:
        each.search = looked.append
    policies.operators.put(operator("o", DEFINITION))
    assert ask(policies, Node()) >= 49
    assert looked == ["q"] * 50
    policies.check_known("q", "classic_queues")
    assert policies.effective("q", "classic_queues") == Effective(None, "o", DEFINITION)
    assert len(looked) == 50
    assert ask(policies, Node(), kind="exchanges") >= 49


def test_a_search_among_few_policies_takes_no_turn(policies):
    policies.check_known("q", "classic_queues")
    policies.put(Policy("p", "^q", DEFINITION))
    policies.check_known("q", "classic_queues")
    assert policies.effective("q", "classic_queues") == Effective("p", None, DEFINITION)


def test_nothing_is_searched_for_a_type_that_no_queue_has(policies, ends_at_once):
    policies.changed([Policy(f"{number}", "x", DEFINITION) for number in range(5)]).do()
    policies.check_known("q", "'' * 16000_queues")


@pytest.mark.parametrize("operators", [False, True])
def test_policies_that_change_during_a_search_are_searched_again(policies, ends_at_once, operators):
    file = policies.operators if operators else policies
    file.changed([Policy(f"{number}", "x", DEFINITION, operator=operators) for number in range(5)]).do()
    search = policies.search("q", "classic_queues")
    next(search)
    file.put(Policy("new", "q", {"max-length": 9}, priority=7, operator=operators))
    policies.effective("other", "classic_queues")   # Another search, by the new ones.
    with pytest.raises(StopIteration) as end:
        while True:
            next(search)
    assert end.value.value.definition == {"max-length": 9}
    file.delete("new")
    assert policies.effective("q", "classic_queues") == Effective()


def test_what_is_known_of_names_that_are_not_there_is_bounded(policies, monkeypatch):
    monkeypatch.setattr(module, "KNOWN_MAX", 10)
    looked = []
    policies.put(Policy("p", "x", DEFINITION))
    policies.get("p").search = looked.append
    for number in range(11):
        policies.effective(f"{number}", "exchanges")
    policies.effective("10", "exchanges")
    assert len(looked) == 11
    policies.effective("0", "exchanges")
    assert len(looked) == 12


def test_things_with_the_same_policies_share_one_definition(policies):
    policies.put(Policy("p", "", DEFINITION))
    policies.operators.put(operator("o", {"expires": 5}))
    first, second = (policies.effective(name, "classic_queues") for name in ("q", "r"))
    assert first is second


# --- files

def test_policies_survive_a_restart(policies):
    policies.put(Policy("p", "^x", {"message-ttl": 5, "dead-letter-exchange": "grün"}, apply_to="queues", priority=3))
    policies.put(Policy("q", "", DEFINITION))
    policies.put(Policy("q", "new", DEFINITION))
    policies.operators.put(operator("o", {"max-length": 1}))
    assert [policy.entry() for policy in again(policies)] == [
        {"name": "p", "pattern": "^x", "apply-to": "queues",
         "definition": {"message-ttl": 5, "dead-letter-exchange": "grün"}, "priority": 3},
        {"name": "q", "pattern": "new", "apply-to": "all", "definition": DEFINITION, "priority": 0}]
    assert names(again(policies).operators) == ["o"]


def test_a_deleted_policy_is_gone_also_after_a_restart(policies):
    policies.put(Policy("p", "", DEFINITION))
    policies.delete("p")
    assert len(policies) == len(again(policies)) == 0
    with pytest.raises(NotFound, match="^no policy 'p'$"):
        policies.delete("p")
    with pytest.raises(NotFound, match="^no operator policy 'p'$"):
        policies.operators.get("p")


def test_what_the_file_holds_now_is_taken_over_and_the_difference_told(policies, tmp_path):
    assert not policies.take_over(policies.read_again())
    (tmp_path / "policies.json").write_text(json.dumps([entry(), entry(name="b")]))
    found = policies.read_again()
    assert names(policies) == []
    assert str(policies.take_over(found)) == "2 added ('a', 'b')"
    assert policies.effective("q", "classic_queues") == Effective("a", None, DEFINITION)
    assert not policies.take_over(policies.read_again())
    (tmp_path / "policies.json").write_text(json.dumps([entry(priority=7)]))
    assert str(policies.take_over(policies.read_again())) == "1 removed ('b'), 1 changed ('a')"
    os.unlink(tmp_path / "policies.json")
    assert str(policies.take_over(policies.read_again())) == "1 removed ('a')"
    assert not policies


def test_a_file_that_cannot_be_used_changes_nothing(policies, tmp_path):
    policies.put(Policy("p", "", DEFINITION))
    (tmp_path / "policies.json").write_text("[{}]")
    with pytest.raises(StoreError, match="entry 1 has no name"):
        policies.read_again()
    assert names(policies) == ["p"]
    with pytest.raises(OSError, match="was edited and not read since"):
        policies.delete("p")
    assert names(policies) == ["p"]
    assert (tmp_path / "policies.json").read_text() == "[{}]"


@pytest.mark.parametrize(("content", "told"), [
    (entry(name=""), "policy name '' is not printable text"),
    (entry(name=5), "policy name 5 is not printable text"),
    # As RabbitMQ words them (3.10; apply-to 4.x, which knows types of queues).
    (entry(pattern="("), "pattern should be regular expression but is invalid: missing ): ("),
    (entry(pattern=5), "pattern should be a binary but was 5"),
    (entry(definition={}), "no policy provided"),
    (entry(definition=[1]), "no policy provided"),
    (entry(apply_to="things"), "apply-to 'things' unrecognised; should be one of: 'queues', 'classic_queues', "),
    (entry(apply_to=[]), "apply-to '[]' unrecognised; "),
    (entry(priority="1"), 'priority should be a number, actually was <<"1">>'),
    (entry(priority=True), "priority should be a number, actually was true"),
    (entry(definition={"max-length": -1}), "-1 is not a valid maximum length"),
    (entry(definition={"nonsense": 1}), '[{<<"nonsense">>,1}] are not recognised policy settings'),
])
def test_an_entry_that_cannot_be_used_is_named(tmp_path, content, told):
    with pytest.raises(PreconditionFailed) as refused:
        Policy.from_entry(content)
    assert str(refused.value).startswith(told)
    (tmp_path / "policies.json").write_text(json.dumps([content]))
    with pytest.raises(StoreError) as caught:
        Policies(str(tmp_path), Disk())
    # A file's reader gets other words: test_words.
    assert str(caught.value).startswith(f"{tmp_path}/policies.json: policy {content['name']!r}: ")


def test_an_operator_policy_has_fewer_keys(tmp_path):
    (tmp_path / "operator-policies.json").write_text(json.dumps([entry(definition={"dead-letter-exchange": "d"})]))
    with pytest.raises(StoreError, match="operator policy 'a': dead-letter-exchange cannot be set by an operator"):
        Policies(str(tmp_path), Disk())


def test_one_name_cannot_be_there_twice(tmp_path):
    (tmp_path / "policies.json").write_text(json.dumps([entry(), entry(pattern="x")]))
    with pytest.raises(StoreError, match="policy 'a' is there twice$"):
        Policies(str(tmp_path), Disk())
