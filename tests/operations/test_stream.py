"""Operations on streams: what they answer is as their models say, and does what it says."""


import pytest
from tests.operations.stand_in import Place, work

from brokerd.operations import OperationError, table
from brokerd.operations.rows import LOCAL
from brokerd.operations.stream import Kept, ReadersListed, Streams, _by_name
from brokerd.queues import tracked
from brokerd.vhost.deletions import finish
from brokerd.wire import methods


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "data")
    place.queue(queue_type="stream")
    place.publish(10)
    return place


def ask(place, name, **fields):
    _, answer = table.perform(place.node, LOCAL, f"stream {name}", {"queue": "q", **fields})
    model = ReadersListed if name == "readers" else Kept
    assert table.adapter(model).validate_python(answer, strict=True) == answer
    return answer


def read(place, reader, offset="first", prefetch=4, channel=1):
    arguments = {"x-stream-offset": offset, "x-stream-reader": reader}
    place.client.send((channel, methods.BasicQos(prefetch_count=prefetch)), (channel, methods.BasicConsume(
        queue="q", consumer_tag=f"tag-{reader}",
        arguments={name: value for name, value in arguments.items() if value})))
    place.node.core.turn()


def test_readers_are_listed_with_how_far_they_are(place):
    read(place, "billing")
    read(place, "", offset=8)
    place.settle(1, 2)
    answer = ask(place, "readers")
    assert {key: answer[key] for key in ("first_offset", "next_offset", "messages", "segments", "removed")} == {
        "first_offset": 1, "next_offset": 11, "messages": 10, "segments": 1, "removed": 0}
    shown = ("reader", "reads", "tag", "unacked", "prefetch", "next_offset", "lowest_unacked", "lag", "missed")
    assert [tuple(row[key] for key in shown) for row in answer["items"]] == [
        ("", True, "tag-", 3, 4, 11, 8, 3, 0), ("billing", True, "tag-billing", 4, 4, 7, 3, 8, 0)]


def test_a_reader_that_is_away_misses_what_retention_removes_meanwhile(place):
    read(place, "billing")
    place.settle(1, 3)
    place.client.send((1, methods.BasicCancel(consumer_tag="tag-billing")))
    finish(place.vhost.queues["q"].purge_in_pieces())
    place.publish(5)
    (row,) = ask(place, "readers")["items"]
    assert (row["lowest_unacked"], row["lag"], row["missed"]) == (4, 5, 7)      # 4 to 10 are gone.
    read(place, "billing", offset=None)
    (row,) = ask(place, "readers")["items"]
    assert (row["lowest_unacked"], row["missed"]) == (11, 7)
    place.client.send((1, methods.BasicCancel(consumer_tag="tag-billing")))
    (row,) = ask(place, "readers")["items"]
    assert (row["reads"], row["missed"]) == (False, 7)


def test_an_offset_is_kept_for_a_reader_that_left(place):
    read(place, "billing")
    place.settle(1, 3)
    place.client.send((1, methods.BasicCancel(consumer_tag="tag-billing")))
    (row,) = ask(place, "readers")["items"]
    assert (row["reader"], row["reads"], row["lowest_unacked"], row["lag"]) == ("billing", False, 4, 7)
    assert ask(place, "set_offset", reader="billing", offset=9) == {
        "queue": "q", "reader": "billing", "offset": 9, "changed": True}
    assert not ask(place, "set_offset", reader="billing", offset=9)["changed"]
    assert ask(place, "reset", reader="billing")["offset"] == 1
    assert ask(place, "set_offset", reader="new", offset=11, create=True)["changed"]
    assert ask(place, "delete", reader="billing")["changed"]
    assert [row["reader"] for row in ask(place, "readers")["items"]] == ["new"]


def test_a_full_table_forgets_no_reader_that_reads_now_for_one_that_is_set(place, monkeypatch):
    monkeypatch.setattr(tracked, "READERS_SLOTS", 3)
    read(place, "billing")
    ask(place, "set_offset", reader="away", offset=5, create=True)
    with pytest.raises(OperationError, match="all 2 places are taken by readers") as refused:
        ask(place, "set_offset", reader="more", offset=5, create=True)
    assert refused.value.code == 409
    assert [row["reader"] for row in ask(place, "readers")["items"]] == ["away", "billing"]


def read_others(place, **arguments):
    """A named reader that wants no message of the stream but those that came by amq.fanout."""
    place.client.send((1, methods.BasicQos(prefetch_count=4)), (1, methods.BasicConsume(
        queue="q", consumer_tag="t", arguments={"x-stream-reader": "picky", "x-stream-filter-sql": "exchange <> ''"}
        | arguments)))
    place.node.core.turn()


def kept(place):
    return {row["reader"]: row["lowest_unacked"] for row in ask(place, "readers")["items"] if not row["reads"]}


def leave(place):
    place.client.send((1, methods.BasicCancel(consumer_tag="t")))


def test_what_the_filter_of_a_named_reader_passed_over_is_kept_when_it_leaves(place):
    read_others(place, **{"x-stream-offset": "first"})
    assert place.vhost.queues["q"].tracked.offset("picky") == 11     # Now, so that kill -9 takes nothing back.
    leave(place)
    assert kept(place) == {"picky": 11}


def test_what_a_filtered_reader_holds_is_kept_and_not_what_it_passed_over_behind_it(place):
    place.client.send((1, methods.QueueBind(queue="q", exchange="amq.fanout")))
    place.publish(1, exchange="amq.fanout")     # 11
    place.publish(5)
    read_others(place, **{"x-stream-offset": "first"})
    leave(place)
    assert kept(place) == {"picky": 11}
    place.settle(1)
    assert kept(place) == {"picky": 17}


@pytest.mark.parametrize(("offset", "stays"), [(8, 3), (3, 11), (2, 11), ("next", 3)])
def test_a_filtered_reader_that_begins_beyond_what_is_kept_moves_it_by_acks_alone(place, offset, stays):
    read(place, "picky")
    place.settle(1, 2)
    place.client.send((1, methods.BasicCancel(consumer_tag="tag-picky")))
    read_others(place, **{"x-stream-offset": offset})
    leave(place)
    assert kept(place) == {"picky": stays}


@pytest.mark.parametrize("single", [True, False])
def test_readers_that_share_keep_what_their_filter_passed_over(place, single):
    share = {"x-single-active-consumer": True} if single else {"x-stream-partitions": "hash"}
    read_others(place, **{"x-stream-offset": "first"}, **share)
    leave(place)
    assert kept(place) == {"picky": 11}


@pytest.mark.parametrize(("name", "fields", "status", "text"), [
    ("delete", {"reader": "nobody"}, 404, "no reader 'nobody' of queue 'q' in vhost '/': no offset is kept for it"),
    ("reset", {"reader": "nobody"}, 404, "no reader 'nobody' of queue 'q' in vhost '/': no offset is kept for it"),
    ("set_offset", {"reader": "nobody", "offset": 2}, 404, "no reader 'nobody' of queue 'q' in vhost '/'"),
    ("set_offset", {"reader": "a", "offset": 12, "create": True}, 400,
     "offset: 12 is beyond the next one of queue 'q'"),
    ("set_offset", {"reader": "a" * 256, "offset": 1}, 400, "reader: 256 octets, but a name has 1 to 255"),
    ("reset", {"reader": ""}, 400, "reader: 0 octets"),
    ("reset", {"reader": "billing"}, 409, "reads now: cancel its consumer first"),
    ("readers", {"queue": "plain"}, 409, "queue 'plain' in vhost '/' is no stream"),
    ("readers", {"queue": "none"}, 404, "none"),
])
def test_what_cannot_be_done_is_refused(place, name, fields, status, text):
    place.queue("plain")
    read(place, "billing")
    with pytest.raises(OperationError) as refused:
        ask(place, name, **fields)
    assert refused.value.code == status
    assert text in str(refused.value)


def test_no_message_is_taken_out_of_a_stream(place):
    place.queue("other")
    for name, fields in (("get", {"ackmode": "ack_requeue_false"}), ("delete", {"seqs": "1"}),
                         ("move", {"to": "other", "seqs": "1"})):
        with pytest.raises(OperationError, match="stay there until retention removes them"):
            table.perform(place.node, LOCAL, f"message {name}", {"queue": "q", **fields})


def test_streams_are_listed_with_the_lag_of_their_readers(place):
    place.queue("plain")
    read(place, "billing")
    read(place, "", offset=8)
    place.settle(1, 2)
    _, job = table.perform(place.node, LOCAL, "stream list", {"with_readers": True})
    answer = work(job)
    assert table.adapter(Streams).validate_python(answer, strict=True) == answer
    (row,) = answer["items"]
    assert {name: row[name] for name in ("name", "messages", "first_offset", "next_offset", "reads", "readers", "lag",
                                         "lag_unnamed", "missed")} == {
        "name": "q", "messages": 10, "first_offset": 1, "next_offset": 11, "reads": 2, "readers": 2, "lag": 8,
        "lag_unnamed": 3, "missed": 0}
    assert row["named"] == [{"reader": "billing", "reads": True, "lag": 8, "missed": 0}]
    assert row["octets"] > 10_000
    assert 0 <= row["oldest_age_ms"] < 600_000


def test_readers_that_share_a_name_are_one_in_the_list_of_streams():
    def row(reader, lag, reads=True):
        return {"reader": reader, "reads": reads, "lag": lag, "missed": 2}

    assert _by_name([row("a", 3, reads=False), row("", 99), row("b", 7), row("a", 5)]) == [
        {"reader": "b", "reads": True, "lag": 7, "missed": 2}, {"reader": "a", "reads": True, "lag": 5, "missed": 2}]
