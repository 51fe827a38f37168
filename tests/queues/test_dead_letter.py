"""What a dead letter says of its deaths; held against octets that RabbitMQ 3.10.8 delivered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.queues.dead_letter import (
    COUNT_MAX,
    DeadLetterRule,
    headers_span,
    is_cycle,
    make_dead_letter,
    read_properties,
    rule_of,
    write_properties,
)
from brokerd.wire.properties import Properties
from brokerd.wire.values import Int64, Timestamp, decode_table, encode_table

# what happened; whether the dead-letter exchange routes by the message's own keys; (queue, reason) of each death;
# stored properties as published, to exchange "x" with key "key"; those of the dead letter from RabbitMQ 3.10.8
BY_RABBITMQ = [
    ("rejected", False,
     [("q1", "rejected")],
     "0000",
     "2000000000d307782d6465617468410000006c460000006705636f756e746c000000000000000106726561736f6e5300"
     "00000872656a6563746564057175657565530000000271310474696d6554000000006b015abc0865786368616e676553"
     "00000001780c726f7574696e672d6b657973410000000853000000036b657916782d66697273742d64656174682d6578"
     "6368616e676553000000017813782d66697273742d64656174682d71756575655300000002713114782d66697273742d"
     "64656174682d726561736f6e530000000872656a6563746564"),
    ("expired by its own expiration", False,
     [("q1", "expired")],
     "110002023230",
     "3000000000ec07782d64656174684100000086460000008105636f756e746c000000000000000106726561736f6e5300"
     "00000765787069726564057175657565530000000271310474696d6554000000006b015abc0865786368616e67655300"
     "000001780c726f7574696e672d6b657973410000000853000000036b6579136f726967696e616c2d6578706972617469"
     "6f6e5300000002323016782d66697273742d64656174682d65786368616e676553000000017813782d66697273742d64"
     "656174682d71756575655300000002713114782d66697273742d64656174682d726561736f6e53000000076578706972"
     "656402"),
    ("expired by the queue", False,
     [("q1", "expired")],
     "e0000a746578742f706c61696e04677a69700000000701624900000001",
     "e0000a746578742f706c61696e04677a6970000000d80162490000000107782d6465617468410000006b460000006605"
     "636f756e746c000000000000000106726561736f6e530000000765787069726564057175657565530000000271310474"
     "696d6554000000006b015abc0865786368616e67655300000001780c726f7574696e672d6b6579734100000008530000"
     "00036b657916782d66697273742d64656174682d65786368616e676553000000017813782d66697273742d6465617468"
     "2d71756575655300000002713114782d66697273742d64656174682d726561736f6e530000000765787069726564"),
    ("too many", False,
     [("q1", "maxlen")],
     "2ee800000034027a7a53000000046c617374026161410000000e4900000001530000000178567401016d460000000b01746c00000100000000000301630172016d000000006553f10001740161",
     "2ee800000103026161410000000e4900000001530000000178567401016d460000000b01746c00000100000000000778"
     "2d6465617468410000006a460000006505636f756e746c000000000000000106726561736f6e53000000066d61786c65"
     "6e057175657565530000000271310474696d6554000000006b015abc0865786368616e67655300000001780c726f7574"
     "696e672d6b657973410000000853000000036b657916782d66697273742d64656174682d65786368616e676553000000"
     "017813782d66697273742d64656174682d71756575655300000002713114782d66697273742d64656174682d72656173"
     "6f6e53000000066d61786c656e027a7a53000000046c6173740301630172016d000000006553f10001740161"),
    ("CC with a dead-letter routing key", False,
     [("q1", "rejected")],
     "21000000001d024343410000000e530000000263315300000002633201784900000001053630303030",
     "2000000001060178490000000107782d64656174684100000098460000009305636f756e746c00000000000000010672"
     "6561736f6e530000000872656a6563746564057175657565530000000271310474696d6554000000006b015abc086578"
     "6368616e67655300000001780c726f7574696e672d6b657973410000001653000000036b657953000000026331530000"
     "00026332136f726967696e616c2d65787069726174696f6e5300000005363030303016782d66697273742d6465617468"
     "2d65786368616e676553000000017813782d66697273742d64656174682d71756575655300000002713114782d666972"
     "73742d64656174682d726561736f6e530000000872656a6563746564"),
    ("CC without a dead-letter routing key", True,
     [("q1", "rejected")],
     "21000000001d024343410000000e530000000263315300000002633201784900000001053630303030",
     "20000000011c024343410000000e53000000026331530000000263320178490000000107782d64656174684100000098"
     "460000009305636f756e746c000000000000000106726561736f6e530000000872656a65637465640571756575655300"
     "00000271310474696d6554000000006b015abc0865786368616e67655300000001780c726f7574696e672d6b65797341"
     "0000001653000000036b65795300000002633153000000026332136f726967696e616c2d65787069726174696f6e5300"
     "000005363030303016782d66697273742d64656174682d65786368616e676553000000017813782d66697273742d6465"
     "6174682d71756575655300000002713114782d66697273742d64656174682d726561736f6e530000000872656a656374"
     "6564"),
    ("two queues", False,
     [("q1", "expired"), ("q2", "rejected")],
     "0100023135",
     "20000000015607782d646561746841000000f0460000006505636f756e746c00000000000000010865786368616e6765"
     "53000000000571756575655300000002713206726561736f6e530000000872656a65637465640c726f7574696e672d6b"
     "6579734100000007530000000271320474696d6554000000006b015abc460000008105636f756e746c00000000000000"
     "0106726561736f6e530000000765787069726564057175657565530000000271310474696d6554000000006b015abc08"
     "65786368616e67655300000001780c726f7574696e672d6b657973410000000853000000036b6579136f726967696e61"
     "6c2d65787069726174696f6e5300000002313516782d66697273742d64656174682d65786368616e6765530000000178"
     "13782d66697273742d64656174682d71756575655300000002713114782d66697273742d64656174682d726561736f6e"
     "530000000765787069726564"),
    ("no headers but an empty table", False,
     [("q1", "rejected")],
     "200000000000",
     "2000000000d307782d6465617468410000006c460000006705636f756e746c000000000000000106726561736f6e5300"
     "00000872656a6563746564057175657565530000000271310474696d6554000000006b015abc0865786368616e676553"
     "00000001780c726f7574696e672d6b657973410000000853000000036b657916782d66697273742d64656174682d6578"
     "6368616e676553000000017813782d66697273742d64656174682d71756575655300000002713114782d66697273742d"
     "64656174682d726561736f6e530000000872656a6563746564"),
    ("there and back", False,
     [("q1", "expired"), ("q2", "rejected"), ("q1", "expired"), ("q2", "rejected"), ("q1", "expired")],
     "21000000000701614900000001023130",
     "20000000015d0161490000000107782d646561746841000000f0460000008105636f756e746c00000000000000030865"
     "786368616e6765530000000178136f726967696e616c2d65787069726174696f6e530000000231300571756575655300"
     "000002713106726561736f6e5300000007657870697265640c726f7574696e672d6b657973410000000853000000036b"
     "65790474696d6554000000006b015abc460000006505636f756e746c00000000000000020865786368616e6765530000"
     "00000571756575655300000002713206726561736f6e530000000872656a65637465640c726f7574696e672d6b657973"
     "4100000007530000000271320474696d6554000000006b015abc16782d66697273742d64656174682d65786368616e67"
     "6553000000017813782d66697273742d64656174682d71756575655300000002713114782d66697273742d6465617468"
     "2d726561736f6e530000000765787069726564"),
]
ONLY_RABBITMQ_4 = ("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason")
TO_DLQ = DeadLetterRule("", "dlq")


def die(headers=None, *, queue="q", reason="rejected", exchange="x", key="k", rule=TO_DLQ, time_s=1000, **properties):
    octets = write_properties(Properties(headers=headers, **properties))
    return make_dead_letter(octets, rule, queue=queue, reason=reason, exchange=exchange, routing_key=key, time_s=time_s)


def deaths(letter):
    return [(death["queue"], death["reason"], death["count"]) for death in letter.headers["x-death"]]


@pytest.mark.parametrize(("by_own_keys", "died", "stored", "expected"), [row[1:] for row in BY_RABBITMQ],
                         ids=[row[0] for row in BY_RABBITMQ])
def test_a_dead_letter_is_octet_for_octet_that_of_rabbitmq(by_own_keys, died, stored, expected):
    last = read_properties(bytes.fromhex(expected)).headers
    properties, exchange, key = bytes.fromhex(stored), "x", "key"
    following = [queue for queue, _ in died[1:]] + ["dlq"]
    for (queue, reason), target in zip(died, following, strict=True):
        rule = DeadLetterRule("", None if by_own_keys else target)
        letter = make_dead_letter(properties, rule, queue=queue, reason=reason, exchange=exchange, routing_key=key,
                             time_s=last["x-death"][-1]["time"])
        properties, exchange, key = letter.properties, "", letter.routing_keys[0]
    assert all(letter.headers[name] for name in ONLY_RABBITMQ_4[1:])
    found = read_properties(properties)
    found.headers = {name: value for name, value in found.headers.items() if name not in ONLY_RABBITMQ_4}
    assert write_properties(found).hex() == expected


def test_the_last_death_is_told_at_each_and_the_first_stays():
    letter = die(queue="a", reason="expired", exchange="one")
    letter = make_dead_letter(letter.properties, TO_DLQ, queue="b", reason="rejected", exchange="two", routing_key="k",
                         time_s=1)
    told = [letter.headers[f"x-{which}-death-{what}"] for which in ("first", "last")
            for what in ("queue", "reason", "exchange")]
    assert told == ["a", "expired", "one", "b", "rejected", "two"]


def test_the_same_death_again_counts_up_moves_to_the_front_and_keeps_its_first_time():
    letter = die(queue="a", reason="expired", time_s=100)
    letter = die(letter.headers, queue="b", time_s=200)
    letter = die(letter.headers, queue="a", reason="expired", exchange="other", key="other", time_s=300)
    assert deaths(letter) == [("a", "expired", 2), ("b", "rejected", 1)]
    first = letter.headers["x-death"][0]
    assert (first["time"], first["exchange"], first["routing-keys"]) == (100, "x", ["k"])
    assert type(first["count"]) is Int64
    assert type(first["time"]) is Timestamp


def test_the_latest_of_many_deaths_comes_first_and_the_others_keep_their_order():
    letter = die(queue="a")
    for queue in "bcd":
        letter = die(letter.headers, queue=queue)
    assert [queue for queue, _, _ in deaths(letter)] == ["d", "c", "b", "a"]


def test_an_expiration_is_told_and_gone():
    letter = die(reason="expired", expiration="500", content_type="t")
    assert letter.headers["x-death"][0]["original-expiration"] == "500"
    kept = read_properties(letter.properties)
    assert (kept.expiration, kept.content_type) == (None, "t")


# --- routing keys

def test_without_a_dead_letter_routing_key_all_keys_are_kept_and_bcc_is_not_seen():
    letter = die({"CC": ["c"], "BCC": ["b"]}, rule=DeadLetterRule("dlx"))
    assert letter.routing_keys == ("k", "c", "b")
    assert letter.headers["CC"] == ["c"]
    assert "BCC" not in letter.headers
    assert letter.headers["x-death"][0]["routing-keys"] == ["k", "c"]


def test_a_dead_letter_routing_key_takes_the_place_of_all_keys():
    letter = die({"CC": ["c"], "BCC": ["b"]}, rule=DeadLetterRule("dlx", ""))
    assert (letter.exchange, letter.routing_keys) == ("dlx", ("",))
    assert "CC" not in letter.headers
    assert "BCC" not in letter.headers
    assert letter.headers["x-death"][0]["routing-keys"] == ["k", "c"]


@pytest.mark.parametrize("cc", ["c", None, 5, [5, None], {}, ["x" * 256]])
def test_what_is_no_routing_key_in_cc_is_passed_over(cc):
    assert die({"CC": cc}, rule=DeadLetterRule("dlx")).routing_keys == ("k",)


def test_a_message_may_name_its_own_exchange_only_where_that_is_allowed():
    octets = write_properties(Properties(headers={"x-dead-letter-exchange": "own", "x-dead-letter-routing-key": "r"}))
    where = {"queue": "q", "reason": "rejected", "exchange": "x", "routing_key": "k", "time_s": 1}
    letter = make_dead_letter(octets, TO_DLQ, per_message=True, **where)
    assert (letter.exchange, letter.routing_keys) == ("own", ("r",))
    assert not {"x-dead-letter-exchange", "x-dead-letter-routing-key"} & letter.headers.keys()
    letter = make_dead_letter(octets, TO_DLQ, **where)
    assert (letter.exchange, letter.routing_keys) == ("", ("dlq",))
    assert letter.headers["x-dead-letter-exchange"] == "own"


@pytest.mark.parametrize(("headers", "expected"), [
    ({"x-dead-letter-exchange": "own"}, ("own", ("k",))),
    ({"x-dead-letter-routing-key": "r"}, ("", ("r",))),
    ({"x-dead-letter-exchange": 5, "x-dead-letter-routing-key": "r" * 256}, ("", ("dlq",))),
])
def test_half_of_an_own_rule_and_one_that_is_none(headers, expected):
    octets = write_properties(Properties(headers=headers))
    letter = make_dead_letter(octets, TO_DLQ, queue="q", reason="rejected", exchange="x", routing_key="k", time_s=1,
                         per_message=True)
    assert (letter.exchange, letter.routing_keys) == expected


# --- cycles

@pytest.mark.parametrize(("history", "queue", "cycle"), [
    ([], "q", False),
    ([("q", "expired")], "q", True),
    ([("q", "expired")], "other", False),
    ([("q", "rejected")], "q", False),
    ([("a", "expired"), ("q", "maxlen")], "q", True),
    ([("a", "rejected"), ("q", "expired")], "q", False),
    ([("a", "expired"), ("q", "rejected")], "q", False),
    ([("q", "expired"), ("a", "rejected")], "q", True),     # latest first: the reject is older than the cycle
    ([("q", "delivery_limit")], "q", True),
])
def test_a_cycle_is_a_way_back_on_which_nobody_rejected(history, queue, cycle):
    headers = {"x-death": [{"queue": name, "reason": reason} for name, reason in history]}
    assert is_cycle(headers, queue) is cycle


@pytest.mark.parametrize("forged", [None, "text", 5, {"queue": "q"}])
def test_no_history_is_no_cycle(forged):
    assert not is_cycle({"x-death": forged}, "q")
    assert not is_cycle({}, "q")


def test_what_only_a_client_can_have_put_into_the_history_makes_it_no_cycle():
    assert not is_cycle({"x-death": ["?", {"queue": "q", "reason": "expired"}]}, "q")
    assert is_cycle({"x-death": [{"queue": "q", "reason": "expired"}, "?"]}, "q")


# --- forged histories

@pytest.mark.parametrize(("forged", "expected"), [
    ("text", [("q", "rejected", 1)]),
    ({"a": 1}, [("q", "rejected", 1)]),
    (None, [("q", "rejected", 1)]),
    ([], [("q", "rejected", 1)]),
    ([{"queue": "q", "reason": "rejected"}], [("q", "rejected", 1)]),
    ([{"queue": "q", "reason": "rejected", "count": 5}], [("q", "rejected", 6)]),
    ([{"queue": "q", "reason": "rejected", "count": "many"}], [("q", "rejected", 1)]),
    ([{"queue": "q", "reason": "rejected", "count": True}], [("q", "rejected", 1)]),
    ([{"queue": "q", "reason": "rejected", "count": COUNT_MAX}], [("q", "rejected", COUNT_MAX)]),
])
def test_a_forged_history_is_counted_as_rabbitmq_does_or_starts_anew(forged, expected):
    letter = die({"x-death": forged})
    assert deaths(letter) == expected
    assert read_properties(letter.properties).headers == letter.headers
    assert ("x-first-death-queue" in letter.headers) is False


OTHER = {"queue": "other", "reason": "expired"}
SAME = {"queue": "q", "reason": "rejected"}


@pytest.mark.parametrize(("forged", "expected"), [
    ([OTHER], [("q", "rejected", 1), ("other", "expired", None)]),      # One item stays as it is.
    ([OTHER, OTHER], [("q", "rejected", 1), ("other", "expired", 2)]),
    ([OTHER, {**OTHER, "count": 7}], [("q", "rejected", 1), ("other", "expired", 2)]),
    ([{**OTHER, "count": 7}, OTHER, OTHER], [("q", "rejected", 1), ("other", "expired", 7)]),
    ([SAME, OTHER, SAME, SAME], [("q", "rejected", 4), ("other", "expired", 1)]),
    ([SAME, OTHER], [("q", "rejected", 2), ("other", "expired", 1)]),
    ([SAME, SAME], [("q", "rejected", 3)]),
    ([OTHER, {**OTHER, "queue": "third"}, OTHER],
     [("q", "rejected", 1), ("other", "expired", 2), ("third", "expired", 1)]),
    ([{**OTHER, "queue": 5}, {**OTHER, "queue": 5}],
     [("q", "rejected", 1), (5, "expired", None), (5, "expired", None)]),
])
def test_deaths_that_were_not_counted_are_merged_as_rabbitmq_does(forged, expected):
    history = die({"x-death": forged}).headers["x-death"]
    assert [(death["queue"], death["reason"], death.get("count")) for death in history] == expected


def test_items_that_are_no_deaths_stay_behind_the_new_one():
    letter = die({"x-death": ["text", 3, {}, {"queue": 5}, [1]]})
    assert letter.headers["x-death"][1:] == ["text", 3, {}, {"queue": 5}, [1]]


KEYS = st.sampled_from(["queue", "reason", "count", "time", "x-death", "CC", "BCC", "routing-keys", "k"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), COUNT_MAX) | st.sampled_from(["q", "rejected", "expired", ""])
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from([None, "dlq"]))
def test_no_headers_make_a_dead_letter_fail(headers, key):
    letter = die(headers, rule=DeadLetterRule("dlx", key))
    again = read_properties(letter.properties).headers
    assert again == letter.headers
    assert again["x-death"][0]["queue"] == "q"
    assert isinstance(is_cycle(again, "q"), bool)


@given(st.binary(max_size=60))
def test_no_octets_make_a_dead_letter_fail(octets):
    letter = make_dead_letter(octets, TO_DLQ, queue="q", reason="expired", exchange="x", routing_key="k", time_s=1)
    assert deaths(letter)[0] == ("q", "expired", 1)


def test_of_headers_that_cannot_be_decoded_all_other_properties_stay():
    whole = write_properties(Properties(content_type="t", headers={"a": 1}, message_id="m"))
    at, end = headers_span(whole)
    assert decode_table(whole[at:end]) == ({"a": 1}, end - at)
    broken = whole[: at + 6] + b"?" + whole[at + 7 :]
    letter = make_dead_letter(broken, TO_DLQ, queue="q", reason="expired", exchange="x", routing_key="k", time_s=1)
    kept = read_properties(letter.properties)
    assert (kept.content_type, kept.message_id) == ("t", "m")
    assert "a" not in kept.headers


def test_the_headers_are_found_behind_content_type_and_encoding_and_nowhere_else():
    for properties in (Properties(headers={"a": 1}), Properties(content_encoding="gzip", headers={}, type="x")):
        octets = write_properties(properties)
        at, end = headers_span(octets)
        assert octets[at:end] == encode_table(properties.headers)
    assert headers_span(write_properties(Properties(content_type="t"))) == (0, 0)


# --- rules

@pytest.mark.parametrize(("arguments", "expected"), [
    ({}, None),
    ({"x-dead-letter-exchange": 5}, None),
    ({"x-dead-letter-exchange": ""}, DeadLetterRule("")),
    ({"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "k"}, DeadLetterRule("x", "k")),
    ({"x-dead-letter-exchange": "x", "x-dead-letter-strategy": "at-most-once"}, DeadLetterRule("x")),
    ({"x-dead-letter-exchange": "x", "x-dead-letter-strategy": "at-least-once"}, DeadLetterRule("x", None, True)),
    ({"x-dead-letter-exchange": "x", "x-dead-letter-strategy": "at-least-once", "x-max-length": 5,
      "x-overflow": "reject-publish"}, DeadLetterRule("x", None, True)),
    ({"x-dead-letter-exchange": "x", "x-dead-letter-strategy": "at-least-once", "x-max-length": 5},
     DeadLetterRule("x")),
    ({"x-dead-letter-exchange": "x", "x-dead-letter-strategy": "at-least-once", "x-max-length-bytes": 5,
      "x-overflow": "drop-head"}, DeadLetterRule("x")),
])
def test_the_rule_in_the_arguments(arguments, expected):
    assert rule_of(arguments) == expected
