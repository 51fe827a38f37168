"""Who may do what: tags, and permissions on a vhost."""

from types import SimpleNamespace
from typing import Annotated

import pytest

from brokerd.auth import Permissions, Users
from brokerd.operations import OperationError
from brokerd.operations.rights import INCLUDED_IN, check
from brokerd.operations.rows import LOCAL, Field, Operation, Right, TypedDict, Who, request
from brokerd.store.disk import Disk


@request
class Asked:
    queue: Annotated[str, Field("")] = "orders"
    vhost: Annotated[str, Field("")] = "/"


class Answer(TypedDict):
    done: bool


@pytest.fixture
def node(tmp_path):
    disk = Disk()
    users, permissions = Users(str(tmp_path), disk), Permissions(str(tmp_path), disk)
    for tag in ("management", "policymaker", "monitoring", "administrator"):
        users.add(tag, "secret", [tag])
    users.add("none", "secret")
    users.add("allowed", "secret", ["management"])
    permissions.set("allowed", "/", "", "^orders$", ".*")
    return SimpleNamespace(users=users, permissions=permissions)


def allowed(node, right, user, **fields):
    row = Operation("queue", "try", "Try.", Asked, Answer, right, lambda node, who, asked: {"done": True})
    try:
        check(node, Who(user), row, Asked(**fields))
    except OperationError as error:
        return str(error) if error.code == 403 else f"{error.code}: {error}"
    return ""


def test_each_tag_may_do_what_the_tags_it_includes_may(node):
    users = ("none", "management", "policymaker", "monitoring", "administrator")
    may = {tag: [user for user in users if not allowed(node, Right(tag), user)] for tag in INCLUDED_IN}
    assert may == {
        "management": ["management", "policymaker", "monitoring", "administrator"],
        "policymaker": ["policymaker", "administrator"], "monitoring": ["monitoring", "administrator"],
        "administrator": ["administrator"],
    }


def test_a_missing_tag_and_a_missing_user_are_named(node):
    assert allowed(node, Right("monitoring"), "management") == (
        "queue try refused: user 'management' does not have the tag monitoring")
    assert allowed(node, Right("management"), "stranger") == "queue try refused: no user 'stranger'"


def test_a_vhost_is_visited_with_any_permission_there_or_a_tag_that_sees_all(node):
    right = Right("management", "visit")
    assert not allowed(node, right, "allowed")
    assert allowed(node, right, "management") == (
        "queue try refused: user 'management' has no permissions in vhost '/'")
    assert allowed(node, right, "policymaker")
    assert not allowed(node, right, "monitoring")
    assert not allowed(node, right, "administrator", vhost="other")
    assert allowed(node, right, "allowed", vhost="other"), "and it does not say whether there is one"


def test_a_permission_is_for_the_name_that_the_request_has(node):
    write = Right("management", "write", on="queue")
    assert not allowed(node, write, "allowed")
    assert allowed(node, write, "allowed", queue="plain") == (
        "queue try refused: user 'allowed' may not write 'plain' in vhost '/'")
    assert not allowed(node, Right("management", "read", on="queue"), "allowed", queue="plain")
    assert allowed(node, Right("management", "configure", on="queue"), "allowed")
    assert allowed(node, write, "administrator"), "a tag is no permission"


def test_the_brokers_own_user_may_do_everything(node):
    row = Operation("queue", "try", "Try.", Asked, Answer, Right("administrator", "write", on="queue"),
                    lambda node, who, asked: {"done": True})
    check(node, LOCAL, row, Asked())
