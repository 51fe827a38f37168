"""Permissions: what a pattern allows, who is told of a change, and what is in permissions.json."""

import json

import pytest

from brokerd.auth import Permissions
from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.store.disk import Disk


@pytest.fixture
def permissions(tmp_path):
    return Permissions(str(tmp_path), Disk())


def again(permissions: Permissions) -> Permissions:
    return Permissions(permissions.path.rpartition("/")[0], Disk(), "other")


def written(tmp_path, *entries) -> Permissions:
    (tmp_path / "permissions.json").write_text(json.dumps(entries))
    return Permissions(str(tmp_path), Disk())


def entry(**changes) -> dict:
    return {"user": "a", "vhost": "/", "configure": "", "write": "", "read": "", **changes}


def test_the_default_user_may_do_all_in_the_first_vhost_and_nothing_elsewhere(permissions):
    for operation in ("configure", "write", "read"):
        assert permissions.check("guest", "/", operation, "orders")
        assert not permissions.check("guest", "other", operation, "orders")
        assert not permissions.check("other", "/", operation, "orders")


@pytest.mark.parametrize(("pattern", "name", "allowed"), [
    (".*", "", True),
    (".*", "line\nline", True),
    ("", "orders", False),
    ("^$", "orders", False),
    ("rder", "orders", True),
    ("^rder", "orders", False),
    ("^(orders|amq\\.default)$", "amq.default", True),
    ("^(orders|amq\\.default)$", "amq-default", False),
    ("ü", "grün", True),
])
def test_a_pattern_is_searched_for_and_the_empty_one_allows_nothing(permissions, pattern, name, allowed):
    permissions.set("anna", "/", "", pattern, "")
    assert permissions.check("anna", "/", "write", name) is allowed
    assert not permissions.check("anna", "/", "read", name)


def test_an_entry_that_allows_nothing_still_opens_the_vhost(permissions):
    permissions.set("anna", "/", "", "", "")
    assert permissions.has_access("anna", "/")
    assert not permissions.has_access("anna", "other")
    assert not permissions.has_access("bert", "/")


def test_permissions_survive_a_restart(permissions):
    permissions.set("anna", "other", "^a", "^b", "^c")
    assert again(permissions).get("anna", "other").definition() == {
        "user": "anna", "vhost": "other", "configure": "^a", "write": "^b", "read": "^c"}
    assert len(again(permissions)) == 2


def test_what_was_cleared_is_gone_also_after_a_restart(permissions):
    permissions.clear("guest", "/")
    assert not permissions.has_access("guest", "/")
    assert list(again(permissions)) == []
    with pytest.raises(NotFound, match="^user 'guest' has no permissions in vhost '/'$"):
        permissions.clear("guest", "/")


def test_each_change_is_told_once(permissions):
    told = []
    permissions.on_change = lambda *key: told.append(key)
    permissions.set("anna", "/", ".*", ".*", ".*")
    permissions.set("anna", "other", ".*", ".*", ".*")
    permissions.clear("anna", "/")
    permissions.forget_vhost("none")
    assert told == [("anna", "/"), ("anna", "other"), ("anna", "/")]


def test_forgetting_a_user_takes_all_and_only_what_was_granted_to_it(permissions):
    permissions.set("anna", "/", "", "", "")
    permissions.set("anna", "other", "", "", "")
    permissions.forget_user("anna")
    assert [each.user for each in again(permissions)] == ["guest"]


def test_forgetting_a_vhost_takes_all_and_only_what_was_granted_in_it(permissions):
    permissions.set("anna", "/", "", "", "")
    permissions.set("anna", "other", "", "", "")
    permissions.forget_vhost("/")
    assert [(each.user, each.vhost) for each in again(permissions)] == [("anna", "other")]


def test_what_is_no_regular_expression_is_refused_and_changes_nothing(permissions):
    with pytest.raises(PreconditionFailed, match="^write is no regular expression: .*'\\('$"):
        permissions.set("guest", "/", ".*", "(", ".*")
    assert permissions.check("guest", "/", "write", "x")
    assert again(permissions).check("guest", "/", "write", "x")


@pytest.mark.parametrize(("content", "told"), [
    (entry(read=5), "entry 1: read is not a text"),
    (entry(read="["), "entry 1: read is no regular expression"),
    (entry(reed=""), "entry 1 has an unknown key 'reed'"),
    ({"user": "a"}, "entry 1 has no vhost"),
])
def test_an_entry_that_cannot_be_used_is_named(tmp_path, content, told):
    with pytest.raises(StoreError) as caught:
        written(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path}/permissions.json: {told}")


def test_one_user_cannot_have_a_vhost_twice(tmp_path):
    with pytest.raises(StoreError, match="entry 2: user 'a' has vhost '/' twice$"):
        written(tmp_path, entry(), entry(read=".*"))


# --- routing keys of topic exchanges


def topics_written(tmp_path, *entries) -> Permissions:
    (tmp_path / "topic_permissions.json").write_text(json.dumps(entries))
    return Permissions(str(tmp_path), Disk())


def topic_entry(**changes) -> dict:
    return {"user": "a", "vhost": "/", "exchange": "x", "write": "", "read": "", **changes}


def test_without_a_topic_permission_every_key_is_allowed(permissions):
    permissions.topics.set("anna", "/", "x", "^a\\.", "^b\\.")
    for user, vhost, exchange in (("bert", "/", "x"), ("anna", "other", "x"), ("anna", "/", "y")):
        assert permissions.topics.check(user, vhost, "write", exchange, "c")


@pytest.mark.parametrize(("pattern", "key", "allowed"), [
    ("^a\\.", "a.b", True),
    ("^a\\.", "b.a.", False),
    (".*", "", True),
    ("", "", True),
    ("", "a", False),
    ("^$", "", True),
    ("^{username}\\.{vhost}$", "an+.a./", True),
    ("^{username}\\.{vhost}$", "ann.a./", False),
    ("^{client_id}$", "{client_id}", True),
])
def test_a_topic_permission_says_which_keys_are_allowed(permissions, pattern, key, allowed):
    permissions.topics.set("an+.a", "/", "x", pattern, "^no$")
    assert permissions.topics.check("an+.a", "/", "write", "x", key) is allowed
    assert not permissions.topics.check("an+.a", "/", "read", "x", key)


def test_topic_permissions_survive_a_restart_until_they_are_cleared(permissions):
    permissions.topics.set("anna", "/", "x", "^{username}", "^c")
    permissions.topics.set("anna", "/", "y", "", "")
    permissions.topics.clear("anna", "/", "y")
    assert [each.definition() for each in again(permissions).topics] == [
        {"user": "anna", "vhost": "/", "exchange": "x", "write": "^{username}", "read": "^c"}]
    with pytest.raises(NotFound, match="^user 'anna' has no topic permissions for exchange 'y' in vhost '/'$"):
        permissions.topics.clear("anna", "/", "y")


def test_a_change_of_a_topic_permission_is_told(permissions):
    told = []
    permissions.topics.on_change = lambda *key: told.append(key)
    permissions.topics.set("anna", "/", "x", "", "")
    permissions.topics.forget_user("anna")
    permissions.topics.forget_vhost("/")
    assert told == [("anna", "/"), ("anna", "/")]
    assert not len(again(permissions).topics)


@pytest.mark.parametrize(("content", "told"), [
    (topic_entry(read=5), "entry 1: read is not a text"),
    (topic_entry(write="["), "entry 1: write is no regular expression"),
    (topic_entry(configure=""), "entry 1 has an unknown key 'configure'"),
])
def test_a_topic_permission_that_cannot_be_used_is_named(tmp_path, content, told):
    with pytest.raises(StoreError) as caught:
        topics_written(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path}/topic_permissions.json: {told}")


def test_a_user_cannot_have_a_topic_exchange_twice(tmp_path):
    with pytest.raises(StoreError, match="entry 2: user 'a' has exchange 'x' in vhost '/' twice$"):
        topics_written(tmp_path, topic_entry(), topic_entry(read=".*"))


@pytest.mark.parametrize("name", ["permissions.json", "topic_permissions.json"])
def test_a_file_that_is_no_list_is_refused(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(StoreError, match="not a list of objects"):
        Permissions(str(tmp_path), Disk())


# --- the file while the broker runs

def test_what_the_file_holds_now_is_taken_over_and_each_difference_told_once(permissions):
    permissions.set("ann", "/", "a", "b", "c")
    permissions.set("bob", "/", "a", "b", "c")
    told = []
    permissions.on_change = lambda *of: told.append(of)
    with open(permissions.path) as file:
        rows = json.load(file)
    kept = [row | {"read": "other"} if row["user"] == "ann" else row for row in rows if row["user"] != "bob"]
    with open(permissions.path, "w") as file:
        json.dump([*kept, {"user": "eve", "vhost": "/", "configure": "", "write": "", "read": ".*"}], file)
    found = permissions.read_again()
    assert told == []
    assert permissions.check("bob", "/", "read", "c")
    assert str(permissions.take_over(found)) == (
        "1 added ('eve' in '/'), 1 removed ('bob' in '/'), 1 changed ('ann' in '/')")
    assert sorted(told) == [("ann", "/"), ("bob", "/"), ("eve", "/")]
    assert not permissions.has_access("bob", "/")
    assert not permissions.take_over(permissions.read_again())
    assert len(told) == 3
