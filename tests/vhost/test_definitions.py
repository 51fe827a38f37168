import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd import plane
from brokerd.errors import NotFound
from brokerd.store.definitions import DefinitionsLog
from brokerd.store.disk import Disk
from brokerd.vhost import definitions
from brokerd.vhost.definitions import COMPACT_DELETES_MIN, compact, is_worth_rewriting, replay
from brokerd.vhost.vhost import VHost
from brokerd.wire import methods


@pytest.fixture
def open_vhost(tmp_path):
    """Open the vhost of one log, again and again."""
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda _: None,
                      damaged=lambda *_: None)

    def open_again():
        log = DefinitionsLog(str(tmp_path / "definitions.amqp"), Disk())
        vhost = VHost("/", str(tmp_path), core, log)
        return vhost, replay(vhost, log.load())

    return open_again


def declare(vhost, name, durable=True, arguments=None):
    return vhost.add_queue(name, durable=durable, auto_delete=False, arguments=arguments or {})


def exchange(vhost, name, type_="topic", durable=True, auto_delete=False):
    return vhost.add_exchange(name, type_, durable=durable, auto_delete=auto_delete, internal=False, arguments={})


def test_what_is_durable_is_there_again_and_nothing_else(open_vhost):
    vhost, _ = open_vhost()
    queue, transient = declare(vhost, "q", arguments={"x-max-length": 5}), declare(vhost, "t", durable=False)
    x, y = exchange(vhost, "x"), exchange(vhost, "y", durable=False)
    for source, destination in ((x, queue), (x, transient), (y, queue), (vhost.exchange("amq.fanout"), x)):
        vhost.bind(source, destination, "key", {"a": 1})
    again, result = open_vhost()
    assert not result.failed
    assert list(again.queues) == ["q"]
    assert again.queue("q").arguments == {"x-max-length": 5}
    assert [(b.source.name, b.routing_key, b.arguments) for b in again.queue("q").bindings] == [("x", "key", {"a": 1})]
    assert [b.source.name for b in again.exchange("x").bindings_to] == ["amq.fanout"]
    with pytest.raises(NotFound):
        again.exchange("y")


def test_what_was_undone_stays_undone_and_deleted_queues_are_named(open_vhost):
    vhost, _ = open_vhost()
    queue, other = declare(vhost, "q"), declare(vhost, "gone")
    x = exchange(vhost, "x")
    vhost.bind(x, queue, "a", {})
    vhost.bind(x, other, "a", {})
    vhost.unbind(x, queue, "a", {})
    vhost.delete_queue(other)
    again, result = open_vhost()
    assert (list(again.queues), again.exchange("x").binding_count) == (["q"], 0)
    assert (result.deleted_queues, result.undone) == ({"gone"}, 2)


def test_the_log_is_rewritten_when_most_of_it_undoes_itself(open_vhost):
    vhost, _ = open_vhost()
    declare(vhost, "kept")
    for _ in range(COMPACT_DELETES_MIN):
        assert not is_worth_rewriting(vhost)
        vhost.delete_queue(declare(vhost, "q"))
    assert is_worth_rewriting(vhost)
    compact(vhost)
    again, result = open_vhost()
    assert (list(again.queues), result.entries) == (["kept"], 1)


def test_a_log_that_is_not_worth_rewriting_costs_no_look_at_all_that_it_defines(open_vhost, monkeypatch):
    vhost, _ = open_vhost()
    queue, x = declare(vhost, "q"), exchange(vhost, "x")
    for number in range(3 * COMPACT_DELETES_MIN):
        vhost.bind(x, queue, str(number), {})
    for number in range(COMPACT_DELETES_MIN):
        vhost.unbind(x, queue, str(number), {})
    asked = []
    definitions = type(vhost).definitions
    monkeypatch.setattr(type(vhost), "definitions", lambda vhost: asked.append(vhost) or definitions(vhost))
    assert not is_worth_rewriting(vhost)
    assert not asked
    for number in range(COMPACT_DELETES_MIN, 2 * COMPACT_DELETES_MIN):
        vhost.unbind(x, queue, str(number), {})
    assert is_worth_rewriting(vhost)
    compact(vhost)
    assert asked == [vhost]
    again, _ = open_vhost()
    assert again.exchange("x").binding_count == COMPACT_DELETES_MIN


def test_an_auto_delete_exchange_goes_with_its_last_binding_also_when_the_queue_is_deleted(open_vhost):
    vhost, _ = open_vhost()
    x = exchange(vhost, "x", auto_delete=True)
    first, second = declare(vhost, "a"), declare(vhost, "b")
    vhost.bind(x, first, "k", {})
    vhost.bind(x, second, "k", {})
    vhost.unbind(x, first, "k", {})
    assert "x" in vhost.exchanges
    vhost.delete_queue(second)
    assert "x" not in vhost.exchanges


def test_each_definition_that_undoes_another_is_counted(open_vhost):
    vhost, _ = open_vhost()
    x, y, queue = exchange(vhost, "x"), exchange(vhost, "y"), declare(vhost, "q")
    for done, undo in enumerate((
        lambda: vhost.unbind(x, queue, "a", {}), lambda: vhost.unbind(x, y, "a", {}), lambda: vhost.delete_exchange(y),
        lambda: vhost.delete_queue(queue),
    )):
        if not done:
            vhost.bind(x, queue, "a", {})
            vhost.bind(x, y, "a", {})
        assert open_vhost()[1].undone == done
        undo()
    assert open_vhost()[1].undone == 4


def test_a_binding_that_its_exchange_does_not_take_any_more_is_reported(tmp_path):
    declared = [
        methods.QueueDeclare(queue="q", durable=True).encode(),
        methods.ExchangeDeclare(exchange="hash", type="x-consistent-hash", durable=True).encode(),
    ]
    bound = [methods.QueueBind(queue="q", exchange=name, routing_key="no weight").encode() for name in ("hash", "")]
    bindings, failed = read(tmp_path, [*declared, *bound, BINDING])[1::4]
    assert len(bindings) == 1
    assert [one.partition(":")[0] for one in failed] == ["entry 3", "entry 4"]


NAMES = st.sampled_from(["", "q", "r", "\udcff", "amq.direct", "amq.topic", "\x02\0\0\0\0", "n" * 255])
TABLES = st.sampled_from([{}, {"x-max-length": 5}])
ENTRIES = st.one_of(
    st.builds(methods.QueueDeclare, queue=NAMES, durable=st.just(True), auto_delete=st.booleans(), arguments=TABLES),
    st.builds(methods.QueueBind, queue=NAMES, exchange=NAMES, routing_key=NAMES, arguments=TABLES),
    st.builds(methods.QueueDelete, queue=NAMES),
).map(lambda method: method.encode())
BINDING = methods.QueueBind(queue="q", exchange="amq.direct", routing_key="k").encode()


def read(tmp_path, payloads):
    """All that a start finds in a log of these entries."""
    core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=lambda _: None,
                      damaged=lambda *_: None)
    vhost = VHost("/", str(tmp_path), core, DefinitionsLog(str(tmp_path / "definitions.amqp"), Disk()))
    found = replay(vhost, payloads)
    return (
        [(queue.name, queue.auto_delete, queue.arguments, queue.directory) for queue in vhost.queues.values()],
        [repr(binding) for exchange in vhost.exchanges.values() for binding in exchange.bindings()],
        [[repr(binding) for binding in queue.bindings] for queue in vhost.queues.values()],
        found.entries, found.undone, found.failed, found.deleted_queues,
    )


@example([methods.QueueDeclare(queue="q", durable=True).encode(), BINDING[:7] + b"\xff" + BINDING[8:]])
@example([methods.QueueDeclare(queue="q", durable=True).encode(), BINDING[:6] + b"\xf0" + BINDING[7:]])
@example([methods.QueueDeclare(queue="q", durable=True).encode(), BINDING, BINDING[:11] + BINDING[-5:]])
@given(st.lists(st.one_of(ENTRIES, st.builds(
    lambda payload, at, octet: payload[:at % len(payload)] + bytes([octet]) + payload[at % len(payload) + 1:],
    ENTRIES, st.integers(4, 300), st.integers(0, 255))), max_size=12))
def test_entries_without_arguments_are_replayed_as_their_methods_say(tmp_path_factory, payloads):
    tmp_path = tmp_path_factory.getbasetemp()
    quick = read(tmp_path, payloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definitions, "_DECLARE_TAIL", b"no entry ends so")
        patch.setattr(definitions, "_BIND_TAIL", b"no entry ends so")
        assert read(tmp_path, payloads) == quick
