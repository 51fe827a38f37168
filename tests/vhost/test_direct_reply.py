import re

import pytest

from brokerd.errors import PreconditionFailed
from brokerd.plane import Message
from brokerd.vhost import direct_reply
from brokerd.vhost.direct_reply import PREFIX, REPLY_TO, WAITING_OCTETS_MAX, Replies, is_volatile
from brokerd.wire import methods
from brokerd.wire.frames import FrameScanner
from brokerd.wire.properties import Properties, decode_header, encode_header


class Channel:
    """A channel, and its own connection."""

    number = 3
    frame_max = 4096
    waiting_octets = 0

    def __init__(self):
        self.connection = self
        self.tag = 0
        self.octets = b""

    def take_tag(self):
        self.tag += 1
        return self.tag

    def write(self, octets):
        self.octets += octets


@pytest.fixture
def replies():
    return Replies()


@pytest.fixture
def channel(replies):
    channel = Channel()
    replies.add(channel, "tag", no_ack=True)
    return channel


def name_of(replies, channel):
    return replies.rewrite(channel, Properties(reply_to=REPLY_TO)).reply_to


def answer(requester, name, properties=b"\0\0", body=b""):
    """Publish an answer."""
    assert requester.before_storing(("queue",)) == ("queue",)
    requester.after_storing(Message(b"", name.encode(), properties, body), None, ())


@pytest.mark.parametrize("literal", [REPLY_TO, "amq.direct.reply-to"])
def test_a_request_gets_the_name_of_its_channel(replies, channel, literal):
    properties = replies.rewrite(channel, Properties(reply_to=literal, correlation_id="7"))
    assert re.fullmatch(r"amq\.rabbitmq\.reply-to\.[\w-]{22}", properties.reply_to)
    assert properties.correlation_id == "7"
    assert properties.reply_to == name_of(replies, channel)


def test_names_differ_by_channel_and_by_time(replies, channel):
    first, other = name_of(replies, channel), Channel()
    replies.add(other, "tag", no_ack=True)
    assert name_of(replies, other) != first
    replies.remove(channel)
    replies.add(channel, "tag", no_ack=True)
    assert name_of(replies, channel) != first


def test_other_reply_tos_are_left_alone(replies, channel):
    for reply_to in ("q", REPLY_TO + "x", PREFIX + "x", None):
        assert replies.rewrite(Channel(), Properties(reply_to=reply_to)).reply_to == reply_to


def test_a_request_without_consumer_is_refused(replies):
    with pytest.raises(PreconditionFailed, match="^fast reply consumer does not exist$"):
        replies.rewrite(Channel(), Properties(reply_to=REPLY_TO))


def test_an_answer_is_delivered_in_frames_of_the_requesters_size(replies, channel):
    name = name_of(replies, channel)
    body, properties = bytes(range(256)) * 40, Properties(headers={"h": 1})
    for _ in range(2):
        answer(replies.requester(name), name, encode_header(0, properties)[12:], body)
    frames = FrameScanner(channel.frame_max).feed(channel.octets)
    deliver = methods.decode(frames[0].payload)
    assert deliver == methods.BasicDeliver(consumer_tag="tag", delivery_tag=1, exchange="", routing_key=name)
    assert decode_header(frames[1].payload) == (len(body), properties)
    assert b"".join(frame.payload for frame in frames[2:5]) == body
    assert methods.decode(frames[5].payload).delivery_tag == 2
    assert {frame.channel for frame in frames} == {3}


def test_an_answer_by_another_routing_key_shows_that_key(replies, channel):
    name = name_of(replies, channel)
    for key in (name, "k", name, "k"):
        answer(replies.requester(name), key)
    found = [methods.decode(frame.payload) for frame in FrameScanner().feed(channel.octets) if frame.kind == 1]
    assert found == [
        methods.BasicDeliver(consumer_tag="tag", delivery_tag=n, routing_key=key)
        for n, key in enumerate((name, "k", name, "k"), 1)]


def test_an_empty_answer_has_no_body_frame(replies, channel):
    name = name_of(replies, channel)
    answer(replies.requester(name), name)
    assert len(FrameScanner().feed(channel.octets)) == 2


@pytest.mark.parametrize("tag", [None, "tag"])
def test_nobody_takes_what_comes_too_late(replies, channel, tag):
    name = name_of(replies, channel)
    assert replies.exists(name)
    requester = replies.requester(name)
    assert requester.counts_as_routed
    assert replies.remove(channel, tag)
    assert replies.requester(name) is None
    answer(requester, name)  # It was routed before.
    assert not requester.counts_as_routed
    assert channel.octets == b""
    assert not replies.exists(name)
    assert not replies.remove(channel, tag)


def test_another_tag_removes_nothing(replies, channel):
    assert not replies.remove(channel, "other")
    assert replies.tag(channel) == "tag"


@pytest.mark.parametrize(("no_ack", "text"), [
    (True, "reply consumer already set"), (False, "reply consumer already set"),
])
def test_there_is_one_consumer_a_channel(replies, channel, no_ack, text):
    with pytest.raises(PreconditionFailed, match=f"^{text}$"):
        replies.add(channel, "other", no_ack=no_ack)


def test_answers_are_not_acknowledged(replies):
    with pytest.raises(PreconditionFailed, match="^reply consumer cannot acknowledge$"):
        replies.add(Channel(), "tag", no_ack=False)


def test_the_general_name_always_exists_others_do_not(replies):
    assert replies.exists(REPLY_TO)
    assert replies.exists("amq.direct.reply-to")
    assert not replies.exists(PREFIX + "abc")


@pytest.mark.parametrize(("name", "volatile"), [
    (REPLY_TO, True), ("amq.direct.reply-to", True), (PREFIX + "abc", True), (REPLY_TO + "x", False), ("q", False),
    ("amq.direct.reply-to.x", False),
])
def test_which_names_are_no_queues(name, volatile):
    assert is_volatile(name) is volatile


def test_answers_to_a_requester_that_does_not_read_are_dropped_and_told_once(replies, channel, monkeypatch):
    told = []
    monkeypatch.setattr(direct_reply.log, "warning", lambda *what: told.append(what))
    name = name_of(replies, channel)
    requester = replies.requester(name)
    channel.waiting_octets = WAITING_OCTETS_MAX - 1
    answer(requester, name, body=b"last")
    channel.waiting_octets = WAITING_OCTETS_MAX
    before = channel.octets
    for _ in range(3):
        answer(requester, name, body=b"dropped")
    assert channel.octets == before
    assert requester.dropped == 3
    assert len(told) == 1
    assert name not in str(told)  # Who knows the name may answer.
    channel.waiting_octets = 0
    answer(requester, name, body=b"again")
    assert len(channel.octets) > len(before)
