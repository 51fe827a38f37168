"""Shovels: what a parameter and the process say of each, as one row; what may be done to it is seen over HTTP."""

import pytest
from tests.operations.linked import Linked

from brokerd.links.state import LinkKey
from brokerd.operations import OperationError
from brokerd.operations.shovel import OPERATIONS

ROWS = {row.verb: row for row in OPERATIONS}
VALUE = {"src-uri": "amqp://u:secret@h", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


@pytest.fixture
def linked(tmp_path):
    return Linked(tmp_path)


def test_a_shovel_of_which_the_process_has_not_told_is_starting_and_its_password_is_masked(linked):
    linked.put("shovel", "s", VALUE)
    row = linked.do(ROWS["show"], name="s")
    assert row["state"] == "starting"
    assert row["definition"] == {**VALUE, "src-uri": "amqp://u:***@h"}
    assert row["since"] == row["messages"] == 0


def test_a_shovel_is_shown_as_the_process_tells_with_times_in_milliseconds(linked):
    linked.put("shovel", "s", VALUE)
    linked.state("shovel", "s", state="blocked", reason="the queue is full", next_try=2.5, since=1.25, messages=7,
                 rate=0.5, unconfirmed=3, reconnects=1, last_message=1.0, lag=9, source_uri="amqp://bob@h")
    linked.state("shovel", "s", vhost="v", state="running")
    linked.state("queue", "s", state="running")
    row = linked.do(ROWS["show"], name="s")
    assert (row["state"], row["reason"], row["messages"], row["unconfirmed"], row["reconnects"], row["lag"]) == (
        "blocked", "the queue is full", 7, 3, 1, 9)
    assert (row["next_try"], row["since"], row["last_message"], row["rate"]) == (2500, 1250, 1000, 0.5)
    assert row["source_uri"] == "amqp://h"


def test_a_pause_is_seen_before_the_process_has_told_of_it_and_so_is_its_end(linked):
    linked.put("shovel", "s", VALUE)
    linked.state("shovel", "s", state="running", messages=7)
    linked.put("paused-shovel", "s", True)
    assert linked.do(ROWS["show"], name="s")["state"] == "paused"
    linked.state("shovel", "s", state="paused", messages=7)
    assert linked.do(ROWS["show"], name="s")["messages"] == 7
    linked.put("paused-shovel", "other", True)
    linked.parameters.changed(gone=[key for key, _ in linked.parameters if key.component == "paused-shovel"]).do()
    assert linked.do(ROWS["show"], name="s")["state"] == "starting"


def test_a_list_has_the_shovels_of_its_vhost_and_no_other_parameters(linked):
    for name, vhost in (("b", "/"), ("a", "/"), ("c", "v")):
        linked.put("shovel", name, VALUE, vhost)
    linked.put("mine", "d", VALUE)
    linked.put("paused-shovel", "a", True)
    assert [row["name"] for row in linked.list(ROWS["list"])] == ["a", "b", "c"]
    assert [row["name"] for row in linked.list(ROWS["list"], vhost="v")] == ["c"]
    assert [row["state"] for row in linked.list(ROWS["list"], vhost="/")] == ["paused", "starting"]


def test_a_restart_reaches_the_process_but_not_a_paused_shovel(linked):
    linked.put("shovel", "s", VALUE)
    with pytest.raises(OperationError, match="does not run yet"):
        linked.do(ROWS["restart"], name="s")
    asked = []
    linked.links.restart = lambda key: asked.append(key) or True
    linked.do(ROWS["restart"], name="s")
    assert asked == [LinkKey("shovel", "/", "s")]
    linked.put("paused-shovel", "s", True)
    with pytest.raises(OperationError, match="is paused"):
        linked.do(ROWS["restart"], name="s")
    with pytest.raises(OperationError, match="no shovel 't' in vhost 'v'") as caught:
        linked.do(ROWS["restart"], name="t", vhost="v")
    assert caught.value.code == 404
    assert len(asked) == 1


def test_what_listens_is_told_of_each_change_of_a_parameter(linked):
    told = []
    linked.links.changed = lambda: told.append(len(linked.parameters))
    linked.put("shovel", "s", VALUE)
    linked.put("paused-shovel", "s", True)
    linked.parameters.take_over(linked.parameters.read_again())
    assert told == [1, 2, 2]
