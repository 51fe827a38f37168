"""How many connections and channels a vhost and a user may have, and what ends with them; over a whole node."""

import json
import os
from functools import partial

import pytest
from tests.conversations.peer import Peer
from tests.operations.stand_in import work
from tests.server.clients import permission, user_entry, write_json
from tests.session.harness import Client as SessionClient

from brokerd import pieces
from brokerd.auth import Permissions, Users
from brokerd.clock import Clock
from brokerd.config import Config
from brokerd.errors import LoginRefused, NotFound, PreconditionFailed, StoreError
from brokerd.node import Node
from brokerd.operations import OperationError
from brokerd.operations.rows import LOCAL
from brokerd.operations.table import find
from brokerd.operations.transfer import Change, Taken
from brokerd.operations.vhost_end import delete, empty
from brokerd.server.values import limits_of, settings_of
from brokerd.store.data_dir import DataDir
from brokerd.store.disk import Disk
from brokerd.vhost.vhost import VHost
from brokerd.wire import methods


@pytest.fixture
def make_node(tmp_path):
    """Nodes on one directory, one after the other; work of threads is done at once."""
    made = []

    def make(later=lambda callback: callback(), **options):
        directory, disk = str(tmp_path / "data"), Disk()
        if made:
            made[-1].close()
        data = DataDir(directory, disk)
        config = Config(data_dir=directory, **options)
        made.append(Node(
            settings_of(config), limits_of(config), clock=Clock(), disk=disk, data=data, users=Users(directory, disk),
            permissions=Permissions(directory, disk), later=later, submit=at_once,
            submit_slow=at_once, sync_failed=pytest.fail))
        made[-1].open_vhosts()
        return made[-1]

    yield make
    if made:
        made[-1].upkeep.close()
        made[-1].close()


def at_once(work, done):
    work()
    done(None)


def add_vhost(node, name):
    vhost = node.make_vhost(name)
    node.listing.put(name)
    return vhost


def delete_vhost(node, name):
    """As an operator does.  Where ``later`` of the node calls at once, it is over when this returns."""
    return work(delete(node, LOCAL, name))


@pytest.fixture
def node(make_node):
    node = make_node()
    node.users.add("ann", "ann")
    node.permissions.set("ann", "/", ".*", ".*", ".*")
    return node


class Client(SessionClient):
    def __init__(self, node):
        super().__init__(node)
        self.connection.loopback = True
        node.connected(self.connection)

    def end(self):
        self.connection.lost()
        self.node.disconnected(self.connection)


def refused(node, user="guest", vhost="/"):
    """The text of the refusal; None for a client that is in, and stays."""
    (answer,) = Client(node).start(user=user, vhost=vhost)
    if isinstance(answer, methods.ConnectionOpenOk):
        return None
    assert answer.reply_code == 530
    return answer.reply_text.removeprefix("NOT_ALLOWED - ")


def test_a_vhost_takes_as_many_connections_as_its_limit_says(node):
    node.set_vhost_limits("/", {"max-connections": 1})
    first = Client(node)
    first.start()
    assert refused(node, "ann") == "access to vhost '/' refused for user 'ann': connection limit (1) is reached"
    first.end()
    assert refused(node, "ann") is None


def test_a_user_has_as_many_connections_as_the_limit_says(node):
    node.users.set_limits("ann", {"max-connections": 2})
    first = Client(node)
    first.start(user="ann")
    assert refused(node, "ann") is None
    assert refused(node, "ann") == "connection refused for user 'ann': user connection limit (2) is reached"
    assert refused(node) is None
    first.end()
    assert refused(node, "ann") is None


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_0_lets_nobody_in_and_one_below_is_none(node, limit):
    node.users.set_limits("ann", {"max-connections": limit})
    node.set_vhost_limits("/", {"max-connections": -1})
    assert (refused(node, "ann") is None) == (limit < 0)


def test_a_user_opens_as_many_channels_on_all_connections_as_the_limit_says(node):
    node.users.set_limits("ann", {"max-channels": 2})
    first, second, other = Client(node), Client(node), Client(node)
    for client, user in ((first, "ann"), (second, "ann"), (other, "guest")):
        client.open(user=user)
    close = second.ask(methods.ChannelOpen(), 2)
    assert (close.reply_code, close.reply_text) == (
        530, "NOT_ALLOWED - number of channels opened for user 'ann' has reached the maximum allowed user limit of (2)")
    assert other.ask(methods.ChannelOpen(), 2) == methods.ChannelOpenOk()


def test_a_vhost_takes_as_many_queues_as_its_limit_says(make_node):
    node = make_node()
    node.set_vhost_limits("/", {"max-queues": 2})
    client = Client(node).open()
    for name in ("a", "b"):
        client.send((1, methods.QueueDeclare(queue=name, durable=True)))
    assert client.send((1, methods.QueueDeclare(queue="c")))[0][1].reply_text == (
        "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached")
    node = make_node()
    client = Client(node).open()
    assert client.send((1, methods.QueueDeclare(queue="a", durable=True)))[0][1].queue == "a"
    client.send((1, methods.QueueDelete(queue="b")))
    assert client.send((1, methods.QueueDeclare(queue="c")))[0][1].queue == "c"
    node.set_vhost_limits("/", {"max-queues": -1})
    assert client.send((1, methods.QueueDeclare(queue="d")))[0][1].queue == "d"


def test_limits_of_vhosts_are_kept(make_node):
    node = make_node()
    add_vhost(node, "two")
    node.set_vhost_limits("two", {"max-connections": 0})
    node = make_node()
    node.permissions.set("guest", "two", ".*", ".*", ".*")
    assert refused(node, vhost="two") == (
        "access to vhost 'two' refused for user 'guest': connection limit (0) is reached")
    node.set_vhost_limits("two", {})
    assert refused(make_node(), vhost="two") is None
    with open(f"{node.data.path}/vhosts.json") as file:
        assert json.load(file) == [{"name": "/"}, {"name": "two"}]


@pytest.mark.parametrize("limits", [{"max-things": 1}, {"max-connections": "1"}, [], {"max-connections": True}])
def test_what_is_no_limit_is_refused_and_changes_nothing(node, limits):
    node.set_vhost_limits("/", {"max-connections": 5})
    with pytest.raises(PreconditionFailed, match="of vhost '/'"):
        node.set_vhost_limits("/", limits)
    assert node.listing.rows["/"].limits == {"max-connections": 5}
    with pytest.raises(KeyError):
        node.set_vhost_limits("nowhere", {})


def test_a_limit_that_cannot_be_used_stops_the_start_and_is_named(make_node):
    node = make_node()
    with open(f"{node.data.path}/vhosts.json", "w") as file:
        json.dump([{"name": "/", "limits": {"max-connections": "many"}}], file)
    with pytest.raises(StoreError, match="entry 1: max-connections of vhost '/' is not a whole number"):
        make_node()


def test_limits_are_read_from_the_files(make_broker):
    broker = make_broker().start()
    broker.stop()
    write_json(broker.directory / "vhosts.json", [{"name": "/", "limits": {"max-connections": 1}}])
    write_json(broker.directory / "users.json", [{**user_entry("guest"), "limits": {"max-channels": 1}}])
    write_json(broker.directory / "permissions.json", [permission("guest")])
    broker.start()
    with Peer(broker.port).open() as peer, Peer(broker.port) as second:
        second.start()
        second.start_ok()
        second.tune_ok()
        second.send((0, methods.ConnectionOpen(virtual_host="/")))
        assert second.connection_close()[0] == 530
        peer.send((2, methods.ChannelOpen()))
        assert peer.connection_close()[0] == 530


# --- what ends


def test_a_deleted_vhost_takes_its_connections_along(node):
    add_vhost(node, "two")
    node.permissions.set("guest", "two", ".*", ".*", ".*")
    inside, outside = Client(node).open(vhost="two"), Client(node).open()
    delete_vhost(node, "two")
    (close,) = inside.read()
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - vhost 'two' is down")
    assert outside.read() == []
    assert refused(node, vhost="two") == "vhost two not found"


def test_connections_of_a_deleted_vhost_have_left_before_it_closes(make_node, monkeypatch):
    soon, left = [], []
    node = make_node(later=soon.append)
    add_vhost(node, "two")
    node.permissions.set("guest", "two", ".*", ".*", ".*")
    inside = Client(node).open(vhost="two")
    for number in range(20):
        inside.ask(methods.QueueDeclare(queue=f"q{number}", exclusive=True))
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    monkeypatch.setattr(VHost, "close", lambda vhost: left.append(dict(vhost.queues)))
    job = delete(node, LOCAL, "two").steps()
    next(job).begin(lambda: None)
    run(soon)
    assert left == [{}]


def test_a_definition_that_waits_for_a_sync_while_its_vhost_is_deleted_does_not_stop_the_broker(make_node):
    soon, failed = [], []
    node = make_node(later=soon.append)
    node.commit._fatal = failed.append
    add_vhost(node, "two")
    node.permissions.set("guest", "two", ".*", ".*", ".*")
    inside, other = Client(node).open(vhost="two"), Client(node).open()
    inside.ask(methods.QueueDeclare(queue="q", durable=True))  # Its answer waits.
    delete_now(node, "two")
    run(soon)
    assert failed == []
    other.ask(methods.QueueDeclare(queue="q", durable=True))
    run(soon)
    assert isinstance(other.read()[0][1], methods.QueueDeclareOk)


def delete_now(node, name):
    """Delete a vhost before a sync begins."""
    vhost = node.vhosts[name]
    node.listing.remove(name)
    node.begin_vhost_end(vhost)
    for _ in empty(node, vhost):
        pass
    node.end_vhost(vhost)


def run(soon):
    while soon:
        soon.pop(0)()


def test_a_vhost_is_deleted_once_however_many_ask_and_a_new_one_of_its_name_keeps_its_folder(make_node):
    soon, answers = [], []
    node = make_node(later=soon.append)
    add_vhost(node, "two")
    for number in range(30):
        node.vhosts["two"].add_queue(f"q{number}", durable=True, auto_delete=False, arguments={})
    jobs = [delete(node, LOCAL, "two"), delete(node, LOCAL, "two"),
            find("vhost add").function(node, LOCAL, find("vhost add").request(vhost="two"))]
    for job in jobs:
        steps = job.steps()
        next(steps).begin(partial(told, steps, answers))
    run(soon)
    assert answers == [{"done": True}, "no vhost 'two'", {"done": True}]
    vhost = node.vhosts["two"]
    assert vhost.queues == {}
    vhost.add_queue("new", durable=True, auto_delete=False, arguments={})
    assert set(make_node().vhosts["two"].queues) == {"new"}


def told(steps, answers):
    try:
        next(steps)
    except StopIteration as end:
        answers.append(end.value)
    except OperationError as error:
        answers.append(str(error))


def test_no_vhost_can_be_made_in_the_folder_of_one_that_is_being_deleted(node):
    vhost = add_vhost(node, "two")
    node.begin_vhost_end(vhost)
    with pytest.raises(AssertionError, match="two is being deleted"):
        node.make_vhost("two")
    with pytest.raises(AssertionError, match="two is being deleted already"):
        node.begin_vhost_end(vhost)
    node.end_vhost(vhost)
    assert node.make_vhost("two").deleted is False


def test_nothing_is_defined_in_a_vhost_that_is_deleted(node):
    vhost = add_vhost(node, "two")
    delete_vhost(node, "two")
    with pytest.raises(PreconditionFailed, match="vhost 'two' is deleted"):
        vhost.add_queue("q", durable=True, auto_delete=False, arguments={})


def test_a_change_of_messages_decides_nothing_in_the_folder_of_a_later_vhost(node):
    vhost = add_vhost(node, "two")
    source, target = (vhost.add_queue(name, durable=True, auto_delete=False, arguments={}) for name in ("from", "to"))
    content = b"", b"from", b"\0\0", b"body"
    assert node.core.put((source,), *content)
    change = Change(node, vhost)
    assert change.add(Taken(source, 1), content, target, content)
    delete_vhost(node, "two")
    later = add_vhost(node, "two")
    there = os.listdir(later.directory)
    with pytest.raises(OperationError, match="vhost 'two' was deleted meanwhile"):
        next(change.carry_out())
    assert os.listdir(later.directory) == there


def test_what_was_granted_in_a_deleted_vhost_is_gone_should_one_of_that_name_come(make_node):
    node = make_node()
    for vhost in ("two", "three"):
        add_vhost(node, vhost)
        node.permissions.set("guest", vhost, ".*", ".*", ".*")
    delete_vhost(node, "two")
    add_vhost(node, "two")
    assert refused(node, vhost="two") == "access to vhost 'two' refused for user 'guest'"
    assert refused(make_node(), vhost="two") == "access to vhost 'two' refused for user 'guest'"
    assert refused(make_node(), vhost="three") is None


def test_a_deleted_user_is_cut_off_and_what_was_granted_is_forgotten(node):
    ann, guest = Client(node).open(user="ann"), Client(node).open()
    node.delete_user("ann")
    (close,) = ann.read()
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - user 'ann' is deleted")
    assert guest.read() == []
    assert not node.permissions.has_access("ann", "/")
    with pytest.raises(NotFound):
        node.delete_user("ann")


@pytest.mark.parametrize("edited", ["permissions", "topics", "parameters", "listing", "users"])
def test_nothing_is_deleted_by_halves_where_a_file_was_edited_meanwhile(node, edited):
    add_vhost(node, "two")
    node.permissions.set("ann", "two", ".*", ".*", ".*")
    node.permissions.topics.set("ann", "two", "amq.topic", "", "")
    inside = Client(node).open(user="ann", vhost="two")
    file = node.permissions.topics if edited == "topics" else getattr(node, edited)
    with open(file.path, "a") as out:
        out.write(" ")
    if edited != "users":
        with pytest.raises(OSError, match="was edited and not read since"):
            delete_vhost(node, "two")
    if edited not in ("listing", "parameters"):
        with pytest.raises(OSError, match="was edited and not read since"):
            node.delete_user("ann")
    assert inside.read() == []
    assert node.permissions.has_access("ann", "two")
    assert not node.permissions.topics.check("ann", "two", "write", "amq.topic", "key")
    assert "two" in node.vhosts
    assert "ann" in node.users


# --- who is logged in without a password


def test_external_and_anonymous_log_in_users_that_are_there_and_no_others(make_node):
    node = make_node(anonymous_login_user="guest")
    assert node.logins.authenticate("EXTERNAL", b"", True, "guest") == "guest"
    assert node.logins.authenticate("ANONYMOUS", b"", True) == "guest"
    for mechanism, name in (("EXTERNAL", "CN=ann"), ("EXTERNAL", "")):
        with pytest.raises(LoginRefused, match="invalid credentials"):
            node.logins.authenticate(mechanism, b"", True, name)
    for mechanism in ("EXTERNAL", "ANONYMOUS"):
        with pytest.raises(LoginRefused, match="can only connect via localhost"):
            node.logins.authenticate(mechanism, b"", False, "guest")


def test_the_firehose_is_switched_and_kept(make_node):
    node = make_node()
    add_vhost(node, "two")
    node.switch_firehose("two", True)
    node.set_vhost_limits("two", {"max-queues": 7})
    node = make_node()
    assert (node.is_firehose_on("/"), node.is_firehose_on("two"), node.vhosts["two"].max_queues) == (False, True, 7)
    node.switch_firehose("two", False)
    assert not make_node().is_firehose_on("two")
    with pytest.raises(KeyError):
        node.switch_firehose("nowhere", True)


def test_tags_hold_as_they_are_now_and_an_impersonator_may_send_any_user_id(node):
    node.users.add("proxy", "secret", ["impersonator"])
    node.permissions.set("proxy", "/", ".*", ".*", ".*")
    access = node.enter("/", "proxy")
    header = (60).to_bytes(2) + bytes(10) + (1 << 4).to_bytes(2) + b"\x05alice"
    access.vhost.add_queue("q", durable=False, auto_delete=False, arguments={})
    assert len(access.resolve(b"", b"q", header, None).queues) == 1
    node.users.set_tags("proxy", [])
    with pytest.raises(PreconditionFailed, match="user_id property set to 'alice' but authenticated user was 'proxy'"):
        access.resolve(b"", b"q", header, None)


def test_a_permission_that_is_taken_ends_what_a_connection_was_allowed(node):
    client = Client(node).open(user="ann")
    client.ask(methods.QueueDeclare(queue="q"))
    get = methods.BasicGet(queue="q", no_ack=True)
    assert client.ask(get) == client.ask(get) == methods.BasicGetEmpty()
    node.permissions.set("ann", "/", ".*", ".*", "r")
    assert client.refusal(get) == (403, "read access to queue 'q' in vhost '/' refused for user 'ann'")
    client.end()
