"""What has to wait, waits: messages of a group, of a retry, behind a stop.  Files as a broker leaves them, and with one
event out of place."""

import pytest
import writer

from brokerd.audit import waits
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.spark import by_arrays
from brokerd.store.format import (
    ACKED,
    DELIVERED,
    EXPIRED,
    GROUP_PARKED_EVENT,
    GROUP_RELEASED_EVENT,
    PARKED_EVENT,
    REASON_LIMIT,
    REDELIVERED,
    REDRIVEN,
    REDRIVEN_EVENT,
    RELEASED_EVENT,
    RESTARTED,
    RETRY_SCHEDULED,
    RETURNED,
    STARTED,
    TOKEN_EVENT,
)

T = 1_780_000_000_000_000_000
STEP = 10_000_000               # ns between two steps
ONE, OTHER = 11, 12
DELAY = 50                      # ms: five steps
GROUPS: dict = {"mode": "exclusive", "by": "header", "headers": ["first", "customer"], "keyless": "free", "most": 1}


def table(*fields):
    octets = b"".join(bytes([len(name)]) + name + value for name, value in fields)
    return b"\x00\x01q\x30\x00" + len(octets).to_bytes(4, "big") + octets + b"\x02"


def text(value):
    return b"S" + len(value).to_bytes(4, "big") + value


def meta(key):
    """What stands between header and body of a message of this group; None: without one, a number: an odd one."""
    if key is None:
        return writer.PLAIN_META
    if isinstance(key, int):
        return table((b"customer", text(b"a")), (b"first", b"l" + key.to_bytes(8, "big")))
    return table((b"x", b"t\x01"), (b"customer", text(key.encode())))


def redriven(key, place):
    return table((b"customer", text(key.encode())), (b"x-group-seq", b"l" + place.to_bytes(8, "big")))


def judged(root, steps, *, groups=GROUPS, keys="aaaabbbb", segment=3, delay=DELAY, log=(), again=None, **settings):
    """``steps``: (seq, type, consumer[, reason]), ten ms apart; type STARTED: the broker starts.  What is said:
    {audit: (verdict, numbers of the messages)}"""
    rows = [(T + STEP * k, seq or T, type_, *(more or (0,)), consumer) for k, (seq, type_, consumer, *more) in
            enumerate(steps, 1)]
    happened = writer.events(rows)
    happened["aux"][happened["type"] == RETRY_SCHEDULED] = delay
    messages, metas = writer.messages(range(1, len(keys) + 1), range(T - 100, T - 100 + len(keys))), map(meta, keys)
    metas = list(metas)
    for seq, place in (again or {}).items():        # Redriven messages, and where they stand.
        messages["flags"][seq - 1] |= REDRIVEN
        metas[seq - 1] = redriven(keys[seq - 1], place)
    level = writer.Level(messages, happened, metas=metas)
    settings = {"groups": groups, **settings}
    written = writer.Options(segment_messages=segment, settings=settings, log=list(log))
    path = str(writer.write_queue(root, level, written))
    options = Options(audits=frozenset(waits.AUDITS))
    (one,) = audit(open_source(path), options)
    assert by_arrays.rows(path, options, None) == one.audits
    return {row["audit"]: (row["verdict"], sorted({f["seq"] for f in one.findings if f["audit"] == row["audit"]}))
            for row in one.audits}


def out(seq, consumer=ONE, reason=0):
    return seq, DELIVERED, consumer, reason


def acked(seq, consumer=ONE):
    return seq, ACKED, consumer


def back(seq):
    return seq, RETURNED, ONE, 1


HELD = ("held", [])
START = (0, STARTED, 0, RESTARTED)


@pytest.mark.parametrize(("steps", "order", "owner"), [
    ([out(1), out(5, OTHER), acked(1), out(2, OTHER), acked(5, OTHER), out(6)], [], []),
    ([out(1), out(2, OTHER), acked(1), acked(2, OTHER)], [2], [2]),
    ([out(2), acked(2), out(1)], [2], []),
    ([out(1), out(2), acked(1), acked(2)], [], [2]),
    ([out(1), back(1), out(2)], [2], []),
    ([out(1), START, out(1, OTHER, REDELIVERED | 4), acked(1, OTHER), out(2)], [], []),
    ([out(1), START, out(2), acked(2)], [2], []),
    ([out(1), (1, EXPIRED, 0), out(2)], [], []),
    ([out(1), out(2, ONE, 8), (2, ACKED, ONE)], [], []),
    ([out(1), acked(1), out(2), acked(2), out(4), acked(4), out(3)], [4], []),
], ids=["in order", "two owners", "later first", "two at once", "returned and passed", "restart", "passed at a restart",
        "expired", "without acks", "over the edge of a segment"])
def test_a_group_goes_out_in_order_to_one_consumer(tmp_path, steps, order, owner):
    said = judged(tmp_path, steps)
    assert said == {"stop_kept": HELD, "group_order": ("violated" if order else "held", order),
                    "group_owner": ("violated" if owner else "held", owner)}


@pytest.mark.parametrize(("groups", "most"), [({"most": 2}, 2), ({"mode": "sticky"}, 9)])
def test_so_many_of_a_group_as_are_allowed_are_out_in_order_with_one_consumer(tmp_path, groups, most):
    steps = [out(1), out(2), out(3), acked(1), out(4)]
    said = judged(tmp_path / "one", steps, groups=GROUPS | groups)
    assert said["group_order"] == HELD
    assert said["group_owner"] == (HELD if most > 2 else ("violated", [3, 4]))
    other = judged(tmp_path / "other", [out(1), out(3), acked(1), acked(3)], groups=GROUPS | groups)
    assert other["group_order"] == ("violated", [3])            # 2 waits.


PUT_BACK = (4, REDRIVEN_EVENT, 0)


@pytest.mark.parametrize(("steps", "wrong"), [
    ([out(2), acked(2), PUT_BACK, out(4), acked(4), out(3)], []),
    ([out(2), acked(2), PUT_BACK, out(3), acked(3), out(4)], [3]),
    ([out(2), acked(2), out(3), acked(3), PUT_BACK, out(4)], []),          # They went out before it was put back.
    ([out(2), PUT_BACK, out(4, OTHER), acked(4, OTHER), acked(2)], []),
    ([out(2), PUT_BACK, acked(2), out(4), back(4), out(3)], [3]),
], ids=["in place", "passed", "put back later", "before one that is out", "passed after its return"])
def test_a_redriven_message_goes_before_the_later_ones_of_its_group(tmp_path, steps, wrong):
    said = judged(tmp_path, [out(1), acked(1), *steps], again={4: 1})
    assert said["group_order"] == (("violated" if wrong else "held"), wrong)


def test_a_redriven_message_that_goes_out_before_it_is_put_back_is_found(tmp_path):
    steps = [*(step for n in (1, 2, 3) for step in (out(n), acked(n))), out(4), back(4), PUT_BACK, out(4), acked(4)]
    assert judged(tmp_path / "early", steps, again={4: 1})["group_order"] == ("violated", [4])
    del steps[6:8]
    assert judged(tmp_path / "in time", steps, again={4: 1})["group_order"] == HELD
    twice = [*steps[:-1], back(4), PUT_BACK, out(4), acked(4)]
    assert judged(tmp_path / "twice", twice, again={4: 1})["group_order"] == HELD
    steps[6] = START    # Killed before it wrote that, a broker puts it back without.
    assert judged(tmp_path / "not told", steps, again={4: 1})["group_order"] == HELD


def test_of_a_redrive_that_tells_of_others_each_message_is_put_back(tmp_path):
    """Without a start in between; and of one alone it is not known: an older broker may have stored it at a start."""
    done = [step for n in (1, 2, 3) for step in (out(n), acked(n))]
    untold, told = [out(4), acked(4)], [(5, REDRIVEN_EVENT, 0), out(5, OTHER), acked(5, OTHER)]
    assert judged(tmp_path / "both", [*done, *told, *untold], again={4: 1, 5: 2})["group_order"] == ("violated", [4])
    assert judged(tmp_path / "start", [*done, *told, START, *untold], again={4: 1, 5: 2})["group_order"] == HELD
    assert judged(tmp_path / "alone", [*done, *untold], again={4: 1})["group_order"] == ("undecidable", [])
    assert judged(tmp_path / "ready", [*done, *told], again={4: 1, 5: 2})["group_order"] == HELD


def test_a_redriven_message_that_passes_an_earlier_one_is_found(tmp_path):
    assert judged(tmp_path, [PUT_BACK, out(4), acked(4)], again={4: 2})["group_order"] == ("violated", [4])


def test_messages_without_a_group_or_with_a_key_that_is_no_text_accuse_nobody(tmp_path):
    steps = [out(2), out(1, OTHER), out(4), out(3, OTHER)]
    assert judged(tmp_path, steps, keys=[None, None, 7, 7, "a"])["group_order"] == HELD


def test_groups_by_a_property_are_judged_and_a_changed_rule_is_not(tmp_path):
    by_key = {"mode": "exclusive", "by": "routing-key", "headers": [], "keyless": "free", "most": 1}
    steps = [out(2), acked(2), out(1)]
    assert judged(tmp_path / "key", steps, groups=by_key)["group_order"] == ("violated", [2])
    change = {"at": T, "what": "settings", "vhost": "/", "queue": "q", "journal": True, "groups": None}
    assert judged(tmp_path / "changed", steps, log=[change]) == {}


def wait(*behind, before=(), **more):
    """1 fails and is to be tried again after five steps."""
    return [out(1), back(1), (1, RETRY_SCHEDULED, ONE), *before, *behind]


IDLE = [(7, EXPIRED, 0)]        # a step in which something else happens


@pytest.mark.parametrize(("behind", "wrong"), [
    ([*IDLE, out(1, ONE, REDELIVERED)], [1]),
    ([*IDLE, (8, EXPIRED, 0), out(5), acked(5), out(6), out(1, ONE, REDELIVERED)], []),
    ([*IDLE, (1, RELEASED_EVENT, 0), out(1, ONE, REDELIVERED)], []),
    ([*IDLE, (1, EXPIRED, 0), out(2)], []),
    ([*IDLE, out(2)], [2]),
    ([out(5), acked(5), START, out(1, ONE, REDELIVERED | 4)], [1]),
    ([START, out(1, ONE, REDELIVERED | 4)], []),
], ids=["early", "in time", "released", "ended", "another of its group", "early after a restart", "kill in between"])
def test_nothing_of_a_group_goes_out_before_the_next_try(tmp_path, behind, wrong):
    assert judged(tmp_path, wait(*behind), retry=True)["retry_kept"] == ("violated" if wrong else "held", wrong)


def test_without_groups_later_messages_overtake_one_that_waits(tmp_path):
    said = judged(tmp_path / "one", wait(out(2), acked(2), out(1, ONE, REDELIVERED)), groups=None, retry=True)
    assert said == {"retry_kept": ("violated", [1]), "stop_kept": HELD}
    said = judged(tmp_path / "other", wait(out(2), acked(2), out(3)), groups=None, retry=True)
    assert said == {"retry_kept": HELD, "stop_kept": HELD}


def test_an_early_try_by_a_clock_that_was_put_back_is_undecidable(tmp_path):
    steps = wait((7, EXPIRED, 0), out(1, ONE, REDELIVERED))
    rows = [(T + STEP * k, seq, type_, *(more or (0,)), who) for k, (seq, type_, who, *more) in enumerate(steps, 1)]
    rows[-1] = (rows[-2][0] + 1, *rows[-1][1:])
    happened = writer.events(rows)
    happened["aux"][happened["type"] == RETRY_SCHEDULED] = DELAY
    level = writer.Level(writer.messages(range(1, 9), range(T - 100, T - 92)), happened)
    root = writer.write_queue(tmp_path, level, writer.Options(settings={"retry": True}))
    (one,) = audit(open_source(str(root)), Options(audits=frozenset({"retry_kept"})))
    (row,) = one.audits
    assert (row["verdict"], row["found"]) == ("undecidable", 0)
    assert "the clock was put back" in row["reason"]


def test_the_token_of_an_early_try_is_no_clock_that_was_put_back(tmp_path):
    at = [0, 1, 2, 4 * STEP - 1, 4 * STEP]
    steps = [out(1), back(1), (1, RETRY_SCHEDULED, ONE), (1, TOKEN_EVENT, ONE), out(1, ONE, REDELIVERED)]
    happened = writer.events([(T + STEP + ts, seq, type_, *(more or (0,)), who)
                              for ts, (seq, type_, who, *more) in zip(at, steps, strict=True)])
    happened["aux"][happened["type"] == RETRY_SCHEDULED] = DELAY
    happened["aux"][happened["type"] == TOKEN_EVENT] = 7
    level = writer.Level(writer.messages(range(1, 9), range(T - 100, T - 92)), happened)
    root = writer.write_queue(tmp_path, level, writer.Options(settings={"retry": True}))
    (one,) = audit(open_source(str(root)), Options(audits=frozenset({"retry_kept"})))
    assert [(row["verdict"], row["found"]) for row in one.audits] == [("violated", 1)]


STOPPED = [out(1), back(1), (1, PARKED_EVENT, ONE, REASON_LIMIT)]
PARKED = [out(1), back(1), (1, GROUP_PARKED_EVENT, ONE, REASON_LIMIT)]


@pytest.mark.parametrize(("steps", "groups", "wrong"), [
    ([*STOPPED, *IDLE, out(2)], None, [2]),
    ([*STOPPED, *IDLE, START, out(5)], None, [5]),
    ([*STOPPED, *IDLE, (1, RELEASED_EVENT, 0), out(2)], None, []),
    ([*STOPPED, *IDLE, (1, EXPIRED, 0), out(2)], None, []),
    ([*PARKED, out(5), acked(5), out(6)], GROUPS, []),
    ([*PARKED, *IDLE, out(1, OTHER, REDELIVERED)], GROUPS, [1]),
    ([*PARKED, *IDLE, (1, GROUP_RELEASED_EVENT, 0), out(1, OTHER, REDELIVERED)], GROUPS, []),
    ([*PARKED, *IDLE, (1, EXPIRED, 0), out(2)], GROUPS, []),
], ids=["passed", "passed at a restart", "released", "skipped", "other groups", "parked and out", "group released",
        "group skipped"])
def test_a_stop_is_kept_until_an_operator_acts(tmp_path, steps, groups, wrong):
    said = judged(tmp_path, steps, groups=groups, delivery_limit_action="park-group" if groups else "block")
    assert said["stop_kept"] == ("violated" if wrong else "held", wrong)


def test_queues_without_these_rules_have_no_such_verdicts(tmp_path):
    assert judged(tmp_path, [out(2), out(1)], groups=None) == {}


def test_behind_a_stop_stand_messages_of_lower_priorities_and_not_those_of_higher_ones(tmp_path):
    stopped = [(T + STEP * k, 2, type_, reason, ONE) for k, (type_, reason) in enumerate(
        ((DELIVERED, 0), (RETURNED, 1), (PARKED_EVENT, REASON_LIMIT)), 1)]
    for name, level, wrong in (("lower", 0, [1]), ("higher", 2, [])):
        path = writer.write_queue(tmp_path / name, {
            1: writer.Level(writer.messages([2], [T - 99]), writer.events(stopped)),
            level: writer.Level(writer.messages([1], [T - 100]), writer.events([(T + STEP * 5, 1, DELIVERED, 0, ONE)])),
        }, writer.Options(settings={"delivery_limit_action": "block"}))
        (one,) = audit(open_source(str(path)), Options(audits=frozenset({"stop_kept"})))
        assert [(row["verdict"], [found["seq"] for found in one.findings]) for row in one.audits] == [
            ("violated" if wrong else "held", wrong)]
