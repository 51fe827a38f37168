"""What is said of a policy in a file that cannot be used: the key, what it may be, what was perhaps meant."""

import json

import pytest

from brokerd.errors import StoreError
from brokerd.policies import Policies
from brokerd.policies.keys import KEYS
from brokerd.policies.words import explain
from brokerd.store.disk import Disk

GOOD = {"name": "p", "pattern": "^a", "definition": {"max-length": 5}}


def told(tmp_path, file="policies.json", **changes):
    """What is said of a file with this entry, behind the file's name."""
    (tmp_path / file).write_text(json.dumps([GOOD | changes]))
    with pytest.raises(StoreError) as refused:
        Policies(str(tmp_path), Disk())
    text = str(refused.value)
    assert text.startswith(f"{tmp_path}/{file}: ")
    assert not {"<<", ">>", "=>"} & set(text.split())
    return text.removeprefix(f"{tmp_path}/{file}: ")


@pytest.mark.parametrize(("definition", "said"), [
    ({"max-lenght": 5}, "'max-lenght' is no setting of a policy; did you mean 'max-length'?"),
    ({"x-message-ttl": 5}, "'x-message-ttl' is no setting of a policy; did you mean 'message-ttl'?"),
    ({"nonsense": {"a": [1]}}, "'nonsense' is no setting of a policy"),
    ({"nonsense": 1, "expires": 1, "more": 2}, "'nonsense' is no setting of a policy (1 more cannot be used)"),
    ({"x" * 500: 1}, f"'{'x' * 56}... is no setting of a policy"),
    ({"max-priority": 5}, "max-priority cannot be set by a policy, only by the argument x-max-priority of a queue"),
    ({"x-max-priority": 5}, "x-max-priority cannot be set by a policy, only by the argument x-max-priority of a queue"),
    ({"max-length": "5"}, "max-length must be a whole number from 0, not '5'"),
    ({"max-length": 5.0}, "max-length must be a whole number from 0, not 5.0"),
    ({"max-length": -1}, "max-length must be a whole number from 0, not -1"),
    ({"max-length": True}, "max-length must be a whole number from 0, not true"),
    ({"max-length": {"a": None}}, 'max-length must be a whole number from 0, not {"a": null}'),
    ({"max-length": ["a" * 99]}, f'max-length must be a whole number from 0, not ["{"a" * 55}...'),
    ({"message-ttl": -1}, "message-ttl must be a whole number from 0 to 315360000000, not -1"),
    ({"overflow": "drop"}, "overflow must be one of drop-head, reject-publish, reject-publish-dlx, not 'drop'"),
    ({"order-journal": "yes"}, "order-journal must be true or false, not 'yes'"),
    ({"queue-version": 3}, "queue-version must be 1 or 2, not 3"),
    ({"dead-letter-exchange": None}, "dead-letter-exchange must be a text of at most 255 octets, not null"),
    ({"dead-letter-routing-key": "ä" * 128},
     f"dead-letter-routing-key must be a text of at most 255 octets, not '{'ä' * 56}..."),
    ({"order-journal-retention-age": "7"},
     "order-journal-retention-age must be a text of a number and its unit (Y, M, D, h, m, s), such as 7D, not '7'"),
    ({}, 'definition must be an object with settings, such as {"max-length": 100}, not {}'),
    ([1], 'definition must be an object with settings, such as {"max-length": 100}, not [1]'),
])
def test_a_definition_that_cannot_be_used_is_told_by_its_key(tmp_path, definition, said):
    assert told(tmp_path, definition=definition) == f"policy 'p': {said}"


@pytest.mark.parametrize(("changes", "said"), [
    ({"pattern": 5}, "policy 'p': pattern must be a text, not 5"),
    ({"pattern": "("}, "policy 'p': pattern is no regular expression: missing ): ("),
    ({"priority": "1"}, "policy 'p': priority must be a number, not '1'"),
    ({"apply-to": "queue"}, "policy 'p': apply-to must be one of all, queues, classic_queues, quorum_queues, streams, "
                            "exchanges, not 'queue'; did you mean 'queues'?"),
    ({"apply-to": 5}, "policy 'p': apply-to must be one of all, queues, classic_queues, quorum_queues, streams, "
                      "exchanges, not 5"),
    ({"name": ""}, "policy '': policy name '' is not printable text"),
    ({"aply-to": "queues"}, "entry 1 has an unknown key 'aply-to'; did you mean 'apply-to'?"),
])
def test_an_entry_that_cannot_be_used_is_told_by_its_key(tmp_path, changes, said):
    assert told(tmp_path, **changes) == said


def test_an_operator_policy_is_told_that_it_has_fewer_keys(tmp_path):
    assert told(tmp_path, "operator-policies.json", definition={"dead-letter-exchange": "d"}) == (
        "operator policy 'p': dead-letter-exchange cannot be set by an operator policy, only by a policy")
    # What it may not set either is no hint.
    assert told(tmp_path, "operator-policies.json", definition={"dead-letter-exchang": "d"}) == (
        "operator policy 'p': 'dead-letter-exchang' is no setting of an operator policy")


@pytest.mark.parametrize("key", sorted(KEYS))
@pytest.mark.parametrize("value", [None, -2, "", 1.5, []])
def test_every_key_says_what_it_may_be(key, value):
    said = explain(GOOD | {"definition": {key: value}}, {"all": ()}, operator=False)
    valid = KEYS[key].valid(value)
    assert (said is None) is valid
    assert valid or said.startswith(f"{key} must be {KEYS[key].rule}, not ")


def test_an_address_in_a_definition_is_told_without_its_password():
    for definition in ({"federation-upstream": ["amqp://u:s3cr@h"]}, {"amqp://u:s3cr@h": 1}):
        said = explain(GOOD | {"definition": definition}, {"all": None}, operator=False)
        assert "u:***@h" in said
        assert "s3cr" not in said


def test_what_has_no_fault_is_not_spoken_of():
    assert explain(GOOD, {"all": ()}, operator=True) is None
