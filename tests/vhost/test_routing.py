"""Where a publish goes, what of it is refused (in a running RabbitMQ's words), and what may be remembered."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.session.harness import Client, Node

from brokerd import plane
from brokerd.errors import AccessRefused, AMQPError, NotFound, PreconditionFailed, SyntaxError_
from brokerd.exchanges import FanoutExchange, Intercepted, Intercepting
from brokerd.policies import Policies
from brokerd.policies.policies import Policy
from brokerd.store.disk import Disk
from brokerd.vhost.routing import IMPERSONATOR, check_expiration, resolve_again, route
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, decode_header, encode_header

CHANNEL = object()


@pytest.fixture
def access(node):
    return node.enter("/", "guest")


def queue(vhost, name, *bindings):
    """A queue bound by (exchange, key) pairs."""
    made = vhost.add_queue(name, durable=False, auto_delete=False, arguments={})
    for exchange, key in bindings:
        vhost.bind(vhost.exchange(exchange), made, key, {})
    return made


def exchange(vhost, name, type_="direct", internal=False, **arguments):
    arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
    return vhost.add_exchange(
        name, type_, durable=False, auto_delete=False, internal=internal, arguments=arguments)


def publish(access, exchange_name, key, channel=CHANNEL, **properties):
    """What resolve answers."""
    header = encode_header(3, Properties(**properties))
    return access.resolve(exchange_name.encode(), key.encode("utf-8", "surrogateescape"), header, channel)


def whole(answer):
    """All that is in an answer."""
    return answer.queues, answer.tally, answer.cacheable, answer.properties, answer.participants


def tell(answer, exchange_name, key, properties=b"\0\0", body=b""):
    """What the plane does with the participants of an answer, where every queue takes the message."""
    queues = answer.before_storing()
    answer.after_storing(plane.Message(exchange_name, key, properties, body), CHANNEL, queues)


def names(answer):
    return [each.name for each in answer.queues]


def stored(answer):
    """The properties that replace those that came."""
    return None if answer.properties is None else decode_header(b"\0\x3c" + bytes(10) + answer.properties)[1]


def refused(error, access, *what, **properties):
    with pytest.raises(error) as refusal:
        publish(access, *what, **properties)
    return refusal.value.reply_text


# --- who may publish where

def test_a_plain_message_is_told_its_queues_and_the_exchange_and_may_be_remembered(access, vhost):
    q = queue(vhost, "q", ("amq.direct", "k"))
    tally = vhost.exchange("amq.direct").tally
    assert whole(publish(access, "amq.direct", "k")) == ((q,), tally, True, None, ())
    more = {"headers": {"a": 1}, "delivery_mode": 2, "expiration": "60000"}
    assert whole(publish(access, "amq.direct", "k", **more)) == ((q,), tally, True, None, ())
    assert whole(publish(access, "", "q")) == ((q,), vhost.exchange("").tally, True, None, ())
    assert publish(access, "", "nowhere").queues == ()


def test_the_channel_may_be_left_out(access, vhost):
    q = queue(vhost, "q")
    assert access.resolve(b"", b"q", encode_header(0)).queues == (q,)


def test_permission_is_asked_before_anything_is_told(access, node):
    node.refused |= {("write", "missing"), ("write", "amq.default")}
    assert refused(AccessRefused, access, "missing", "k") == (
        "ACCESS_REFUSED - write access to exchange 'missing' in vhost '/' refused for user 'guest'")
    assert "exchange 'amq.default'" in refused(AccessRefused, access, "", "k")
    assert refused(NotFound, access, "other", "k") == "NOT_FOUND - no exchange 'other' in vhost '/'"


def test_an_internal_exchange_is_reached_through_others_only(access, vhost):
    q = queue(vhost, "q")
    inner = exchange(vhost, "inner", "fanout", internal=True)
    vhost.bind(inner, q, "", {})
    vhost.bind(vhost.exchange("amq.direct"), inner, "k", {})
    assert refused(AccessRefused, access, "inner", "k", expiration="x") == (
        "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'")
    assert names(publish(access, "amq.direct", "k")) == ["q"]


def test_names_that_are_not_utf_8_lead_somewhere(access, vhost):
    q = queue(vhost, "\udcff", ("amq.topic", "\udcfe.#"))
    assert access.resolve(b"", b"\xff", encode_header(0)).queues == (q,)
    assert access.resolve(b"amq.topic", b"\xfe.x", encode_header(0)).queues == (q,)


# --- expiration

@pytest.mark.parametrize("expiration", ["0", "5", "+5", "00", "-0", "315360000000"])
def test_a_number_of_milliseconds_up_to_ten_years_passes(access, expiration):
    assert publish(access, "", "k", expiration=expiration).cacheable


@pytest.mark.parametrize(("expiration", "fault"), [
    ("abc", "no_integer"), ("", "no_integer"), (" 5", "no_integer"), ("-", "no_integer"), ("é", "no_integer"),
    ("5s", '{leftover_string,"s"}'), ("5 ", '{leftover_string," "}'), ("1.5", '{leftover_string,".5"}'),
    ("-5s", '{leftover_string,"s"}'), ("0x5", '{leftover_string,"x5"}'), ('5"q', '{leftover_string,"\\"q"}'),
    ("5\n", '{leftover_string,"\\n"}'), ("5\x01", "{leftover_string,[1]}"), ("1_000", '{leftover_string,"_000"}'),
    ("-1", "{value_negative,-1}"), ("315360000001", "{value_too_large,315360000001}"),
])
def test_any_other_expiration_is_refused(access, expiration, fault):
    assert refused(PreconditionFailed, access, "", "k", expiration=expiration) == (
        f"PRECONDITION_FAILED - invalid expiration '{expiration}': {fault}")


@given(st.text(max_size=255))
def test_no_text_is_a_fault_of_ours(text):
    try:
        check_expiration(text)
    except PreconditionFailed:
        pass


# --- user-id

def test_a_user_id_must_be_the_users_own_and_is_never_remembered(access, vhost):
    q = queue(vhost, "q")
    assert whole(publish(access, "", "q", user_id="guest")) == ((q,), vhost.exchange("").tally, False, None, ())
    assert refused(PreconditionFailed, access, "", "q", user_id="bob") == (
        "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'guest'")


def test_an_impersonator_may_use_any_user_id(access, vhost):
    queue(vhost, "q")
    tags = {IMPERSONATOR}
    access.has_tag = tags.__contains__
    assert names(publish(access, "", "q", user_id="bob")) == ["q"]
    tags.clear()
    assert "'bob'" in refused(PreconditionFailed, access, "", "q", user_id="bob")


# --- headers

@pytest.fixture
def by_headers(access, vhost):
    """A function: publish to an exchange of headers that leads to a queue, with options of the exchange."""
    q = queue(vhost, "q")

    def ask(headers, *, name="h", **properties):
        return publish(access, name, "k", headers=headers, **properties)

    vhost.bind(exchange(vhost, "h", "headers", alternate_exchange="amq.fanout"), q, "", {"a": 1})
    return ask


def test_an_answer_by_headers_says_what_its_exchange_asks_for(by_headers, vhost):
    for headers in ({"a": 1}, {"a": 2}, None):
        answer = by_headers(headers)
        assert (answer.cacheable, answer.by_headers) == (False, (vhost.exchange("h").asked,))
    assert names(by_headers({"a": 1})) == ["q"]


def test_the_alternate_of_an_exchange_of_headers_is_part_of_the_answer(by_headers, vhost):
    queue(vhost, "other", ("amq.fanout", ""))
    assert [names(by_headers({"a": a})) for a in (1, 2)] == [["q"], ["other"]]
    assert by_headers({"a": 2}).by_headers == (vhost.exchange("h").asked,)


def test_all_exchanges_of_headers_on_the_way_are_in_the_answer(by_headers, vhost):
    outer = exchange(vhost, "outer", "fanout")
    for inner in ("amq.headers", "h"):
        vhost.bind(outer, vhost.exchange(inner), "", {})
    answer = by_headers({"a": 1}, name="outer")
    assert set(answer.by_headers) == {vhost.exchange("h").asked, vhost.exchange("amq.headers").asked}


def test_an_answer_says_whether_the_bindings_of_its_exchange_decide(by_headers, access, vhost):
    tables = vhost.exchange("h").decides
    assert tables is not None
    assert [by_headers({"a": a}).decided_by for a in (1, 2)] == [tables, tables]
    vhost.bind(exchange(vhost, "outer", "fanout"), vhost.exchange("h"), "", {})
    exchange(vhost, "later", "x-delayed-message", x_delayed_type="headers")
    for name in ("outer", "later", "amq.direct"):
        assert by_headers({"a": 1}, name=name).decided_by is None
    for headers, properties in (({"a": 1, "CC": ["k"]}, {}), ({"a": 1}, {"user_id": "guest"})):
        assert by_headers(headers, **properties).decided_by is None
    vhost.bind(vhost.exchange("h"), exchange(vhost, "kept", "x-recent-history"), "", {"a": 3})
    assert by_headers({"a": 3}).participants
    assert [by_headers({"a": a}).decided_by for a in (1, 3)] == [tables, None]


def test_bindings_do_not_decide_where_a_queue_looks_for_duplicates(by_headers, access, vhost):
    header = encode_header(0, Properties(headers={"a": 1}))
    again = vhost.add_queue("again", durable=True, auto_delete=False, arguments={"x-message-deduplication": True})
    vhost.bind(vhost.exchange("h"), again, "", {"a": 1})
    assert resolve_again(access, b"h", b"", header).decided_by is None


def test_what_depends_on_more_than_headers_is_not_by_headers(by_headers, access, vhost):
    for headers, properties in (({"a": 1, "CC": ["k"]}, {}), ({"a": 1, "BCC": ["k"]}, {}),
                                ({"a": 1}, {"user_id": "guest"})):
        assert by_headers(headers, **properties).by_headers == ()
    vhost.bind(vhost.exchange("h"), exchange(vhost, "chance", "x-random"), "", {"a": 1})
    assert by_headers({"a": 1}).by_headers == ()
    assert by_headers({"a": 2}).by_headers != ()
    assert publish(access, "amq.direct", "k").by_headers == ()


def test_while_duplicates_are_looked_for_nothing_is_by_headers(by_headers, vhost):
    again = vhost.add_queue("again", durable=True, auto_delete=False, arguments={"x-message-deduplication": True})
    vhost.bind(vhost.exchange("h"), again, "", {"a": 1})
    assert by_headers({"a": 1}).by_headers == ()


# --- CC and BCC

def test_cc_and_bcc_add_keys_and_bcc_is_taken_out_of_what_is_stored(access, vhost):
    for number in "1234":
        queue(vhost, f"q{number}", ("amq.direct", number))
    answer = publish(access, "amq.direct", "1", headers={"CC": ["2", "2"], "BCC": ["3"], "a": 1}, message_id="m")
    assert names(answer) == ["q1", "q2", "q3"]
    assert not answer.cacheable
    assert stored(answer) == Properties(headers={"CC": ["2", "2"], "a": 1}, message_id="m")
    assert answer.participants == ()


def test_cc_alone_changes_nothing_of_the_message(access, vhost):
    queue(vhost, "a")
    queue(vhost, "b")
    answer = publish(access, "", "a", headers={"CC": ["b"]})
    assert (names(answer), *whole(answer)[2:]) == (["a", "b"], False, None, ())


def test_bcc_alone_leaves_an_empty_table(access):
    assert stored(publish(access, "", "a", headers={"BCC": ["b"]})) == Properties(headers={})


def test_the_keys_of_cc_are_followed_through_exchanges_bound(access, vhost):
    inner = exchange(vhost, "inner", "topic")
    queue(vhost, "q", ("inner", "b.*"))
    vhost.bind(vhost.exchange("amq.direct"), inner, "a", {})
    assert names(publish(access, "amq.direct", "a", headers={"CC": ["b.c"]})) == ["q"]
    assert names(publish(access, "amq.direct", "z", headers={"BCC": ["a"], "CC": ["b.c"]})) == ["q"]


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize(("value", "type_"), [
    ("q", "longstr"), (5, "signedint"), ({"a": 1}, "table"), (True, "bool"), (None, "void"), (1 << 40, "long"),
])
def test_another_type_than_array_is_refused(access, name, value, type_):
    assert refused(PreconditionFailed, access, "", "q", headers={name: value}) == (
        f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{name}",{type_}}}')


def test_what_is_no_text_in_the_array_is_passed_over(access, vhost):
    queue(vhost, "q")
    assert names(publish(access, "", "nowhere", headers={"CC": [1, None, "q", ["q"]]})) == ["q"]


def test_texts_that_only_look_like_these_headers_do_nothing(access, vhost):
    queue(vhost, "q")
    for headers in ({"cc": ["q"]}, {"a": "\x02CC"}, {"a": {"CC": ["q"]}}, {"XCC": ["q"]}):
        assert names(publish(access, "", "nowhere", headers=headers)) == []


def test_headers_that_cannot_be_decoded_end_the_connection(access):
    with pytest.raises(SyntaxError_):
        access.resolve(b"", b"q", b"\0\x3c" + bytes(10) + b"\x20\x00\x00\x00\x00\x05\x02CCQQ", CHANNEL)


# --- alternate exchanges

@pytest.mark.parametrize("argument", ["alternate_exchange", "x_alternate_exchange"])
def test_the_alternate_exchange_gets_what_finds_no_binding(access, vhost, argument):
    exchange(vhost, "x", **{argument: "amq.fanout"})
    queue(vhost, "here", ("x", "k"))
    queue(vhost, "there", ("amq.fanout", ""))
    assert names(publish(access, "x", "k")) == ["here"]
    assert names(publish(access, "x", "k", headers={"CC": ["nope"]})) == ["here"]
    assert names(publish(access, "x", "nope", headers={"CC": ["k"]})) == ["here"]
    assert names(publish(access, "x", "nope")) == ["there"]
    assert whole(publish(access, "x", "nope"))[1:] == (vhost.exchange("x").tally, True, None, ())


def test_each_exchange_on_the_way_has_its_own_alternate(access, vhost):
    exchange(vhost, "outer", alternate_exchange="amq.fanout")
    vhost.bind(vhost.exchange("outer"), exchange(vhost, "dead end"), "k", {})
    queue(vhost, "q", ("amq.fanout", ""))
    assert names(publish(access, "outer", "k")) == []
    vhost.bind(vhost.exchange("outer"), exchange(vhost, "inner", alternate_exchange="amq.fanout"), "k", {})
    assert names(publish(access, "outer", "k")) == ["q"]


def test_alternates_that_are_missing_or_go_in_a_circle_lead_nowhere(access, vhost):
    exchange(vhost, "a", alternate_exchange="b")
    assert publish(access, "a", "k").queues == ()
    exchange(vhost, "b", alternate_exchange="a")
    assert publish(access, "a", "k").queues == ()


def test_an_alternate_may_be_internal_and_no_permission_is_asked_for_it(access, vhost, node):
    exchange(vhost, "x", alternate_exchange="inner")
    exchange(vhost, "inner", "fanout", internal=True)
    queue(vhost, "q", ("inner", ""))
    node.refused.add(("write", "inner"))
    assert names(publish(access, "x", "k")) == ["q"]


def test_a_policy_gives_an_alternate_exchange_where_the_arguments_do_not(access, vhost, tmp_path):
    vhost.policies = Policies(str(tmp_path), Disk())
    for name, pattern, target, priority in (("low", "^x", "missing", 0), ("high", "^x", "amq.fanout", 1)):
        vhost.policies.put(
            Policy(name, pattern, {"alternate-exchange": target}, apply_to="exchanges", priority=priority))
    exchange(vhost, "x")
    exchange(vhost, "x2", alternate_exchange="amq.match")
    queue(vhost, "q", ("amq.fanout", ""))
    queue(vhost, "headers", ("amq.match", ""))
    assert names(publish(access, "x", "k")) == ["q"]
    assert names(publish(access, "x2", "k")) == ["headers"]
    assert names(publish(access, "", "nowhere")) == []


def test_messages_of_nobody_take_the_same_way_without_permission(vhost, node):
    exchange(vhost, "x", internal=True, alternate_exchange="amq.fanout")
    queue(vhost, "here", ("x", "b"))
    queue(vhost, "there", ("amq.fanout", ""))
    x = vhost.exchange("x")
    assert [q.name for q in route(vhost, x, "a", Properties, further_keys=("b",)).queues] == ["here"]
    assert [q.name for q in route(vhost, x, "a", Properties).queues] == ["there"]


# --- exchanges that look at the message

def test_an_exchange_that_reads_the_message_is_asked_every_time(access, vhost):
    queue(vhost, "q")
    vhost.bind(vhost.exchange("amq.headers"), vhost.queue("q"), "", {"a": 1})
    assert whole(publish(access, "amq.headers", "", headers={"a": 1}))[0:3:2] == ((vhost.queue("q"),), False)
    assert whole(publish(access, "amq.headers", "", headers={"a": 2}))[0:3:2] == ((), False)
    assert whole(publish(access, "amq.headers", ""))[0:3:2] == ((), False)


def test_an_exchange_that_intercepts_decides_instead_of_the_bindings(access, vhost):
    class Taking(FanoutExchange):
        intercepts = Intercepting(("b",), plane.Asked())
        answer = None

        def intercept(self, routing_key, properties):
            self.question = (routing_key, properties().headers)
            return self.answer

    x = vhost.exchanges["x"] = Taking("x")
    q, other = queue(vhost, "q", ("x", "")), queue(vhost, "other")
    assert whole(publish(access, "x", "k", headers={"a": 1})) == ((q,), None, False, None, ())
    assert x.question == ("k", {"a": 1})
    Taking.answer = Intercepted((other,))
    assert whole(publish(access, "x", "k")) == ((other,), None, False, None, ())
    assert publish(access, "x", "k", headers={"BCC": ["b"]}).properties is None  # routed later, by BCC too
    Taking.answer = Intercepted((other,), b"\0\0")
    assert whole(publish(access, "x", "k", message_id="m")) == ((other,), None, False, b"\0\0", ())


def test_while_it_is_traced_a_message_is_asked_for_every_time_and_the_trace_is_told_last(access, vhost):
    class Firehose:
        on = True

        def participant(self):
            return "shown"

    q, vhost.firehose, vhost.replies = queue(vhost, "q"), Firehose(), Replies()
    assert whole(publish(access, "", "q"))[2:] == (False, None, ("shown",))
    assert publish(access, "", "amq.rabbitmq.reply-to.token").participants[1:] == ("shown",)
    Firehose.on = False
    assert whole(publish(access, "", "q")) == ((q,), vhost.exchange("").tally, True, None, ())


# --- direct reply-to

class Replies:
    """What vhost/direct_reply does, as far as routing knows it."""

    def __init__(self):
        self.given = []

    def rewrite(self, channel, properties):
        assert channel is CHANNEL
        properties.reply_to = "amq.rabbitmq.reply-to.token"
        return properties

    def requester(self, routing_key):
        return None if routing_key.endswith(".gone") else Requester(self, routing_key)


class Requester:
    counts_as_routed = True
    refuses = False

    def __init__(self, replies, key):
        self.replies, self.key = replies, key

    def before_storing(self, queues):
        return queues

    def after_storing(self, message, channel, stored):
        self.replies.given.append((self.key, channel, message.routing_key, message.body))


@pytest.mark.parametrize("name", ["amq.rabbitmq.reply-to", "amq.direct.reply-to"])
def test_the_name_of_replies_is_rewritten_and_no_other(access, vhost, name):
    queue(vhost, "q")
    vhost.replies = Replies()
    answer = publish(access, "", "q", reply_to=name, correlation_id="1")
    assert stored(answer) == Properties(reply_to="amq.rabbitmq.reply-to.token", correlation_id="1")
    assert (names(answer), answer.cacheable) == (["q"], False)
    for other in ("amq.rabbitmq.reply-to.x", "amq.direct.reply-to.x", "amq.rabbitmq.reply", "q"):
        assert publish(access, "", "q", reply_to=other).properties is None


def test_without_anybody_who_serves_replies_there_is_no_consumer(access):
    assert refused(PreconditionFailed, access, "", "q", reply_to="amq.rabbitmq.reply-to") == (
        "PRECONDITION_FAILED - fast reply consumer does not exist")
    assert whole(publish(access, "", "amq.rabbitmq.reply-to.token"))[::4] == ((), ())


def test_faults_are_told_in_rabbitmqs_order(access, vhost):
    everything = {"reply_to": "amq.rabbitmq.reply-to", "user_id": "bob", "expiration": "x", "headers": {"CC": 1}}
    texts = []
    for name in list(everything):
        texts.append(refused(PreconditionFailed, access, "", "q", **everything))
        del everything[name]
    assert [text.split()[2] for text in texts] == ["fast", "user_id", "invalid", "invalid"]
    assert "unacceptable" in texts[3]


def test_a_reply_is_given_to_its_taker(access, vhost):
    vhost.replies = Replies()
    answer = publish(access, "", "amq.rabbitmq.reply-to.token")
    assert (answer.queues, answer.cacheable, answer.properties) == ((), True, None)
    tell(answer, b"", b"k", body=b"body")
    assert answer.counts_as_routed
    assert vhost.replies.given == [("amq.rabbitmq.reply-to.token", CHANNEL, b"k", b"body")]


def ask(access, exchange_name, key, channel, **properties):
    """What resolve_again and resolve answer to the same publish, without what differs by object."""
    properties.setdefault("reply_to", "amq.rabbitmq.reply-to")
    given = exchange_name.encode(), key.encode(), encode_header(3, Properties(**properties)), channel
    answers = []
    for resolver in (partial(resolve_again, access), access.resolve, partial(resolve_again, access)):
        try:
            answers.append(whole(resolver(*given))[:4])
        except AMQPError as error:
            answers.append(error.reply_text)
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


@pytest.fixture
def asker(vhost):
    """A channel that consumes answers."""
    vhost.replies.add(channel := object(), "tag", no_ack=True)
    return channel


@given(properties=st.fixed_dictionaries({}, optional={
    "content_type": st.text(max_size=9), "content_encoding": st.text(max_size=9), "priority": st.integers(0, 255),
    "delivery_mode": st.integers(0, 255), "correlation_id": st.text(max_size=60), "message_id": st.text(max_size=9),
    "timestamp": st.integers(0, 1 << 60), "type": st.text(max_size=9), "app_id": st.text(max_size=9),
    "user_id": st.sampled_from(["guest", "bob"]), "expiration": st.sampled_from(["5", "x"]),
    "headers": st.sampled_from([{}, {"CC": ["r"]}, {"BCC": ["r"]}, {"CC": 5}, {"h": 1}]),
    "reply_to": st.sampled_from(["amq.direct.reply-to", "amq.rabbitmq.reply-to.x", "amq.rabbitmq.reply-to", "q", ""]),
}), consumes=st.booleans())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_request_is_resolved_again_as_it_was_the_first_time(access, vhost, asker, properties, consumes):
    for name in "qr":
        if name not in vhost.queues:
            queue(vhost, name)
    ask(access, "", "q", asker if consumes else object(), **properties)


def test_a_request_that_is_resolved_again_sees_what_has_changed(access, vhost, node, asker):
    vhost.bind(vhost.exchange("amq.direct"), queue(vhost, "q"), "k", {})
    assert [each.name for each in ask(access, "amq.direct", "k", asker)[0]] == ["q"]
    second = queue(vhost, "r", ("amq.direct", "k"))
    assert len(ask(access, "amq.direct", "k", asker)[0]) == 2
    vhost.delete_queue(second)
    assert len(ask(access, "amq.direct", "k", asker)[0]) == 1
    vhost.replies.remove(asker)
    assert ask(access, "amq.direct", "k", asker) == "PRECONDITION_FAILED - fast reply consumer does not exist"
    vhost.replies.add(asker, "tag", no_ack=True)
    node.refused.add(("write", "amq.direct"))
    access.permission_changed()
    assert ask(access, "amq.direct", "k", asker).startswith("ACCESS_REFUSED")
    assert ask(access, "nowhere", "k", asker).startswith("NOT_FOUND")


@pytest.mark.parametrize("type_", ["x-random", "headers", "x-delayed-message", "x-recent-history", "fanout"])
def test_a_request_through_any_exchange_is_resolved_again_alike(access, vhost, asker, type_):
    arguments = {"x_delayed_type": "fanout"} if type_ == "x-delayed-message" else {}
    vhost.bind(exchange(vhost, "e", type_, **arguments), queue(vhost, "q"), "", {"a": 1} if type_ == "headers" else {})
    for headers in (None, {"a": 1}, {"b": 1}):
        ask(access, "e", "", asker, **({} if headers is None else {"headers": headers}))


def test_only_so_many_places_of_requests_are_remembered(access, vhost, asker, monkeypatch):
    monkeypatch.setattr("brokerd.vhost.routing.KNOWN_MAX", 3)
    queue(vhost, "q7")
    for n in (*range(10), *range(10)):
        assert len(ask(access, "", f"q{n}", asker)[0]) == (n == 7)
        assert len(access.known) <= 3


def test_a_reply_to_nobody_is_routed_nowhere(access, vhost):
    vhost.replies = Replies()
    answer = publish(access, "", "amq.rabbitmq.reply-to.gone")
    assert whole(answer) == ((), vhost.exchange("").tally, False, None, ())


def test_replies_go_through_the_default_exchange_only(access, vhost):
    vhost.replies = Replies()
    assert whole(publish(access, "amq.direct", "amq.rabbitmq.reply-to.token")) == (
        (), vhost.exchange("amq.direct").tally, True, None, ())


def test_a_message_may_be_for_queues_and_several_takers(access, vhost):
    q, vhost.replies = queue(vhost, "q"), Replies()
    answer = publish(access, "", "q", headers={"CC": ["amq.rabbitmq.reply-to.1", "amq.rabbitmq.reply-to.2"]})
    assert answer.queues == (q,)
    tell(answer, b"", b"q")
    assert [key for key, *_ in vhost.replies.given] == ["amq.rabbitmq.reply-to.1", "amq.rabbitmq.reply-to.2"]


# --- recent history

class Core:
    """Takes what is put."""

    def __init__(self):
        self.put_there = []
        self.full = False

    def put(self, queues, exchange, routing_key, properties, body):
        if self.full:
            raise OSError(28, "No space left on device")
        self.put_there.append(([queue.name for queue in queues], exchange, routing_key, properties, body))
        return queues


def with_history(access, vhost, messages):
    exchange(vhost, "h", "x-recent-history", x_recent_history_length=2)
    for body in messages:
        answer = publish(access, "h", "k")
        assert (answer.cacheable, answer.properties) == (True, None)
        tell(answer, b"h", b"k", body=body)
    q = queue(vhost, "q")
    vhost.core = Core()
    return vhost.exchange("h"), q


def test_what_is_newly_bound_gets_the_last_messages_once_a_binding(access, vhost):
    h, q = with_history(access, vhost, [b"1", b"2", b"3"])
    vhost.bind(h, q, "", {})
    expected = [(["q"], b"h", b"k", b"\0\0", body) for body in (b"2", b"3")]
    assert vhost.core.put_there == expected
    vhost.bind(h, q, "", {})
    assert vhost.core.put_there == expected
    vhost.bind(h, q, "other", {})
    assert vhost.core.put_there == expected * 2


def test_an_exchange_newly_bound_routes_them(access, vhost):
    h, q = with_history(access, vhost, [b"1"])
    vhost.bind(vhost.exchange("amq.topic"), q, "k", {})
    vhost.bind(h, vhost.exchange("amq.direct"), "", {})
    assert vhost.core.put_there == []
    vhost.bind(h, vhost.exchange("amq.topic"), "", {})
    assert vhost.core.put_there == [(["q"], b"h", b"k", b"\0\0", b"1")]


def test_messages_that_come_by_way_of_another_exchange_are_kept_too(access, vhost):
    h, q = with_history(access, vhost, [])
    vhost.bind(vhost.exchange("amq.direct"), h, "k", {})
    tell(publish(access, "amq.direct", "k"), b"amq.direct", b"k", body=b"by way of")
    vhost.bind(h, q, "", {})
    assert [body for *_, body in vhost.core.put_there] == [b"by way of"]


def test_a_full_disk_does_not_keep_a_queue_from_being_bound(access, vhost):
    h, q = with_history(access, vhost, [b"1"])
    vhost.core.full = True
    vhost.bind(h, q, "", {})
    assert h.binding_count == 1


# --- any way through, against one key at a time

KEYS = st.sampled_from(["a", "b", "c", "d"])


@settings(max_examples=60, deadline=None)
@given(bindings=st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["x", "y", "z", "q1", "q2"]), KEYS)),
       alternates=st.dictionaries(st.sampled_from("xyz"), st.sampled_from("xyzw")), key=KEYS, copies=st.lists(KEYS))
def test_any_net_of_exchanges_leads_where_asking_each_binding_leads(
        tmp_path_factory, bindings, alternates, key, copies):
    vhost = Node(tmp_path_factory.mktemp("vhost")).vhost
    for name in "xyz":
        exchange(vhost, name, **({"alternate_exchange": alternates[name]} if name in alternates else {}))
    ends = {name: queue(vhost, name) for name in ("q1", "q2")} | {name: vhost.exchange(name) for name in "xyz"}
    for source, end, binding_key in bindings:
        vhost.bind(vhost.exchange(source), ends[end], binding_key, {})
    keys, reached, waiting = {key, *copies}, set(), ["x"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in "xyz":
            found = [end for source, end, binding_key in bindings if source == name and binding_key in keys]
            waiting += found or [alternates[name]] if name in alternates else found
    found = route(vhost, vhost.exchange("x"), key, Properties, further_keys=copies).queues
    assert {q.name for q in found} == reached & {"q1", "q2"}


# --- exchanges that go with their last binding

def test_a_chain_of_auto_delete_exchanges_longer_than_the_stack_goes_with_its_queue(vhost):
    end = q = queue(vhost, "q")
    for number in range(3000):
        made = vhost.add_exchange(
            f"x{number}", "fanout", durable=False, auto_delete=True, internal=False, arguments={})
        vhost.bind(made, end, "", {})
        end = made
    vhost.delete_queue(q)
    assert not [name for name in vhost.exchanges if name.startswith("x")]


def test_auto_delete_exchanges_in_a_circle_go_together(vhost):
    x, y = (vhost.add_exchange(name, "fanout", durable=False, auto_delete=True, internal=False, arguments={})
            for name in "xy")
    vhost.bind(x, y, "", {})
    vhost.bind(y, x, "", {})
    vhost.delete_exchange(x)
    assert vhost.exchanges.keys().isdisjoint("xy")


def test_arguments_that_mean_nothing_to_a_type_are_refused_when_it_is_made(vhost):
    with pytest.raises(PreconditionFailed) as refusal:
        exchange(vhost, "h", "x-recent-history", x_recent_history_length=0)
    assert "positive integer" in refusal.value.reply_text
    assert "h" not in vhost.exchanges


# --- over the real data plane

def send(client, exchange_name, key, body=b"x", **properties):
    """Publish on channel 1; what comes back."""
    header = encode_header(len(body), Properties(**properties))
    return client.raw(methods.BasicPublish(exchange=exchange_name, routing_key=key).frame(1)
                      + header_frame(1, header) + body_frames(1, body, 4096))


def bodies(client, name):
    """All that waits in the queue, as (body, properties)."""
    found = []
    while True:
        out = client.send((1, methods.BasicGet(queue=name, no_ack=True)))
        if len(out) == 1:
            return found
        found.append((out[2].payload, decode_header(out[1].payload)[1]))


@pytest.mark.parametrize(("fault", "code"), [
    ({"expiration": "soon"}, 406), ({"user_id": "bob"}, 406), ({"headers": {"CC": "q"}}, 406),
    ({"headers": {"a": 1, "BCC": 5}}, 406), ({"reply_to": "amq.rabbitmq.reply-to"}, 406),
])
def test_what_is_remembered_of_a_route_hides_no_fault(node, vhost, fault, code):
    client = Client(node).open()
    queue(vhost, "q", ("amq.direct", "k"))
    for _ in range(3):
        assert send(client, "amq.direct", "k", expiration="60000", headers={"a": 1}, reply_to="r") == []
    (_, close), = send(client, "amq.direct", "k", **fault)
    assert (close.NAME, close.reply_code) == ("channel.close", code)


def test_copies_are_stored_without_their_bcc_and_the_next_message_goes_its_own_way(node, vhost):
    client = Client(node).open()
    queue(vhost, "a", ("amq.direct", "a"))
    queue(vhost, "b", ("amq.direct", "b"))
    send(client, "amq.direct", "a", b"1")
    send(client, "amq.direct", "a", b"2", headers={"BCC": ["b"], "n": 2}, app_id="x")
    send(client, "amq.direct", "a", b"3")
    second = (b"2", Properties(headers={"n": 2}, app_id="x"))
    assert bodies(client, "a") == [(b"1", Properties()), second, (b"3", Properties())]
    assert bodies(client, "b") == [second]


def test_a_queue_bound_to_recent_history_gets_the_messages_before_it(node, vhost):
    client = Client(node).open()
    exchange(vhost, "h", "x-recent-history", x_recent_history_length=2)
    for number in range(5):
        send(client, "h", "k", b"%d" % number, message_id=f"m{number}")
    queue(vhost, "q", ("h", ""))
    send(client, "h", "k", b"5")
    assert [body for body, _ in bodies(client, "q")] == [b"3", b"4", b"5"]


def test_messages_spread_by_hash_stay_with_their_queue(node, vhost):
    client = Client(node).open()
    exchange(vhost, "x", "x-consistent-hash", hash_header="customer")
    for name in ("q1", "q2", "q3"):
        queue(vhost, name, ("x", "1"))
    for number in range(300):
        send(client, "x", "k", b"%d" % (number % 30), headers={"customer": number % 30})
    found = [{body for body, _ in bodies(client, name)} for name in ("q1", "q2", "q3")]
    assert sum(map(len, found)) == len(set.union(*found)) == 30
    assert all(found)
