"""Users: what is in users.json, who may log in, and what a failed write changes (nothing)."""

import json
from pathlib import Path

import pytest

from brokerd.auth import User, Users
from brokerd.auth.passwords import hash_password
from brokerd.errors import NotFound, PreconditionFailed, StoreError
from brokerd.store.disk import Disk

HASH = hash_password("secret")


@pytest.fixture
def users(tmp_path):
    return Users(str(tmp_path), Disk())


def again(users: Users) -> Users:
    return Users(users.path.rpartition("/")[0], Disk(), "other", "other")


def written(tmp_path, *entries) -> Users:
    (tmp_path / "users.json").write_text(json.dumps(entries))
    return Users(str(tmp_path), Disk())


def test_the_default_user_is_made_where_the_file_is_missing(tmp_path):
    users = Users(str(tmp_path), Disk(), "me", "mine")
    assert [user.name for user in users] == ["me"]
    assert users.authenticate("me", b"mine").tags == ("administrator",)


def test_the_default_user_is_not_made_again_after_it_was_deleted(users):
    users.delete("guest")
    assert list(again(users)) == []


def test_users_survive_a_restart(users):
    users.add("anna", "grün", ["monitoring", "monitoring", "own"])
    anna = again(users).authenticate("anna", "grün")
    assert (anna.name, anna.tags) == ("anna", ("monitoring", "own"))
    assert [user.definition() for user in again(users)] == [user.definition() for user in users]


def test_the_file_has_the_shape_of_rabbitmqs_definitions(users):
    with open(users.path) as file:
        (entry,) = json.load(file)
    assert list(entry) == ["name", "password_hash", "hashing_algorithm", "tags"]
    assert (entry["name"], entry["hashing_algorithm"]) == ("guest", "rabbit_password_hashing_sha256")


def test_a_password_is_nowhere_in_the_file(users):
    users.add("anna", "hunter2")
    with open(users.path) as file:
        assert "hunter2" not in file.read()


@pytest.mark.parametrize(("name", "password"), [("guest", "wrong"), ("guest", ""), ("nobody", "guest"), ("", "")])
def test_a_wrong_name_or_password_is_nobody(users, name, password):
    assert users.authenticate(name, password) is None


def test_a_changed_password_is_the_only_one_that_is_right(users):
    users.change_password("guest", "new")
    assert users.authenticate("guest", "guest") is None
    assert again(users).authenticate("guest", "new").tags == ("administrator",)


def test_a_user_without_a_password_cannot_log_in(users):
    users.clear_password("guest")
    assert users.authenticate("guest", "") is None
    assert again(users).authenticate("guest", "guest") is None


def test_tags_are_replaced(users):
    users.set_tags("guest", ["management"])
    assert again(users).authenticate("guest", "guest").tags == ("management",)


def test_limits_are_kept_whatever_else_is_changed(users):
    users.set_limits("guest", {"max-connections": 5, "max-channels": -1})
    users.set_tags("guest", ["management"])
    users.change_password("guest", "new")
    users.clear_password("guest")
    users = again(users)
    assert users.limit("guest", "max-connections") == 5
    assert users.limit("guest", "max-channels") == users.limit("nobody", "max-connections") == -1
    users.set_limits("guest", {})
    assert "limits" not in again(users).get("guest").definition()


@pytest.mark.parametrize("change", [
    lambda users: users.get("x"),
    lambda users: users.change_password("x", "y"),
    lambda users: users.clear_password("x"),
    lambda users: users.set_tags("x", []),
    lambda users: users.set_limits("x", {}),
    lambda users: users.delete("x"),
])
def test_nobody_cannot_be_changed(users, change):
    with pytest.raises(NotFound, match="^no user 'x'$"):
        change(users)


@pytest.mark.parametrize("change", [
    lambda users: users.add("guest", "x"),
    lambda users: users.add("", "x"),
    lambda users: users.add("a\nb", "x"),
    lambda users: users.add("\udcff", "x"),
    lambda users: users.add("ü" * 128, "x"),
    lambda users: users.add("anna", ""),
    lambda users: users.add("anna", "x", [""]),
    lambda users: users.change_password("guest", ""),
    lambda users: users.set_tags("guest", ["a\nb"]),
    lambda users: users.set_limits("guest", {"max-connections": 1.5}),
])
def test_what_cannot_be_is_refused_and_changes_nothing(users, change):
    with pytest.raises(PreconditionFailed):
        change(users)
    assert [user.name for user in again(users)] == ["guest"]
    assert users.authenticate("guest", "guest").tags == ("administrator",)


def test_a_change_that_cannot_be_written_is_not_made(tmp_path):
    class Failing(Disk):
        full = False

        def replace(self, path, content, mode=0o640):
            if self.full:
                raise OSError(28, "No space left on device")
            super().replace(path, content, mode)

    disk = Failing()
    users = Users(str(tmp_path), disk)
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        users.delete("guest")
    assert "guest" in users


def test_tags_joined_by_commas_and_a_missing_algorithm_are_understood(tmp_path):
    users = written(tmp_path, {"name": "anna", "password_hash": HASH, "tags": "management, own", "limits": {}})
    assert users.authenticate("anna", "secret").tags == ("management", "own")


def test_hashes_of_older_algorithms_log_in(tmp_path):
    users = written(tmp_path, *(
        {"name": name, "password_hash": hash_password("x", name), "hashing_algorithm": name}
        for name in ("rabbit_password_hashing_sha512", "rabbit_password_hashing_md5")))
    assert all(users.authenticate(user.name, "x") is user for user in users)


@pytest.mark.parametrize(("entry", "told"), [
    ({"name": 1, "password_hash": HASH}, "user name 1 is not"),
    ({"name": "a", "password_hash": "x"}, "password_hash of user 'a' is not base64"),
    ({"name": "a", "password_hash": None}, "password_hash of user 'a' is not base64"),
    ({"name": "a", "password_hash": HASH, "hashing_algorithm": "rot13"}, "hashing_algorithm of user 'a' is not one of"),
    ({"name": "a", "password_hash": HASH, "hashing_algorithm": []}, "hashing_algorithm of user 'a' is not one of"),
    ({"name": "a", "password_hash": HASH, "tags": {"x": 1}}, "tags of user 'a' are not a list"),
    ({"name": "a", "password_hash": HASH, "tags": [1]}, "tags of user 'a' are not a list"),
    ({"name": "a", "password_hash": HASH, "limits": {"max-queues": 1}},
     "limits of user 'a' are max-connections and max-channels, not 'max-queues'"),
    ({"name": "a", "password_hash": HASH, "limits": [1]}, "limits of user 'a' are not an object"),
    ({"name": "a", "password_hash": HASH, "limits": {"max-channels": "1"}}, "max-channels of user 'a' is not a whole"),
    ({"name": "a", "password_hash": HASH, "limits": {"max-channels": True}}, "max-channels of user 'a' is not a whole"),
    ({"name": "a", "password_hash": HASH, "limits": {"max-channels": 1 << 31}}, "max-channels of user 'a' is not a"),
    ({"name": "a"}, "entry 1 has no password_hash"),
    ({"name": "a", "password_hash": HASH, "tagz": []}, "entry 1 has an unknown key 'tagz'"),
])
def test_an_entry_that_cannot_be_used_is_named(tmp_path, entry, told):
    with pytest.raises(StoreError) as caught:
        written(tmp_path, entry)
    assert str(caught.value).startswith(f"{tmp_path}/users.json: {told}")


def test_one_name_cannot_be_there_twice(tmp_path):
    with pytest.raises(StoreError, match="user 'a' is there twice$"):
        written(tmp_path, *[User("a", HASH).definition()] * 2)


# --- the file while the broker runs

def test_what_the_broker_has_changed_and_what_was_edited_both_hold_after_a_read(users):
    users.add("ann", "a")
    content = json.loads(Path(users.path).read_text())
    Path(users.path).write_text(json.dumps([*content, content[0] | {"name": "bob"}]))
    found = users.read_again()
    assert "bob" not in users
    assert str(users.take_over(found)) == "1 added ('bob')"
    assert {"ann", "bob"} <= {user.name for user in users}
    users.set_tags("ann", ["monitoring"])
    assert {entry["name"] for entry in json.loads(Path(users.path).read_text())} >= {"ann", "bob"}


def test_an_edited_file_is_not_written_over(users):
    edited = Path(users.path).read_text() + " "
    Path(users.path).write_text(edited)
    with pytest.raises(OSError, match="was edited and not read since"):
        users.add("ann", "a")
    assert "ann" not in users
    assert Path(users.path).read_text() == edited
