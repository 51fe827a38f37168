"""Federation links: each has an id that stays, and is found by it in its vhost alone."""

import pytest
from tests.operations.linked import Linked

from brokerd.operations import OperationError
from brokerd.operations.federation_link import OPERATIONS

ROWS = {row.verb: row for row in OPERATIONS}


@pytest.fixture
def linked(tmp_path):
    linked = Linked(tmp_path)
    linked.state("queue", "q", upstream="u", state="idle", lag=4, source="there", consumer_tag="tag", since=1.5)
    linked.state("exchange", "q", upstream="u", state="starting", reason="connection refused", next_try=9)
    linked.state("queue", "q", vhost="v", upstream="u", state="running")
    linked.state("shovel", "s", state="starting")
    return linked


def test_a_list_has_the_links_of_queues_and_exchanges(linked):
    rows = linked.list(ROWS["list"])
    assert [(row["vhost"], row["type"], row["state"]) for row in rows] == [
        ("/", "exchange", "starting"), ("/", "queue", "idle"), ("v", "queue", "running")]
    assert len({row["id"] for row in rows}) == 3
    assert (rows[1]["lag"], rows[1]["source"], rows[1]["consumer_tag"], rows[1]["since"]) == (4, "there", "tag", 1500)


def test_links_that_wait_for_consumers_count_as_up(linked):
    assert [row["reason"] for row in linked.list(ROWS["list"], only_down=True)] == ["connection refused"]


def test_a_link_is_found_by_its_id_which_stays(linked):
    row = linked.list(ROWS["list"], vhost="v")[0]
    linked.state("queue", "q", vhost="v", upstream="u", state="starting", reason="gone")
    assert linked.do(ROWS["show"], id=row["id"], vhost="v")["reason"] == "gone"
    with pytest.raises(OperationError, match=f"no federation link '{row['id']}' in vhost '/'"):
        linked.do(ROWS["show"], id=row["id"])
    with pytest.raises(OperationError, match="no vhost 'w'"):
        linked.do(ROWS["show"], id=row["id"], vhost="w")


def test_a_restart_reaches_the_process(linked):
    row = linked.list(ROWS["list"], vhost="v")[0]
    with pytest.raises(OperationError, match="the process of links is starting"):
        linked.do(ROWS["restart"], id=row["id"], vhost="v")
    asked = []
    linked.links.restart = lambda key: asked.append(tuple(key)) or True
    linked.do(ROWS["restart"], id=row["id"], vhost="v")
    assert asked == [("queue", "v", "q", "u")]
