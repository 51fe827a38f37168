"""A vhost's folder: opened again with what is durable, swept of what is not, and never guessing about messages."""

import os

import pytest
from tests.session.harness import Client, Node

from brokerd.errors import NotFound, StoreError
from brokerd.queues.queue import Queue
from brokerd.store.definitions import DefinitionsLog
from brokerd.store.disk import Disk
from brokerd.store.format import DEFINITIONS_FILE, folder_name
from brokerd.store.garbage import Garbage
from brokerd.store.recovery import recover
from brokerd.vhost.folder import load_vhost, mark_deleted, remove_deleted
from brokerd.vhost.vhost import queue_declare
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame


def at_once(work, done):
    work()
    done(None)


class Place:
    """One data directory; ``open`` is a start, ``close`` a stop, with one client on a real data plane between."""

    def __init__(self, path, name="/"):
        self.path = path
        self.name = name
        self.told = []
        self.recovered = []
        self.vhost = None

    def open(self):
        self.told.clear()
        self.recovered.clear()
        node = Node(self.path)
        self.garbage = Garbage(str(self.path), at_once)
        self.vhost = load_vhost(self.name, str(self.path), node.core, Disk(), self.garbage, suspect=False,
                                report=self.told.append, recover=self._recover)
        self.garbage.flush()
        node.vhost = self.vhost
        self.client = Client(node).open()
        self.vhost.accesses["guest"] = self.client.connection.access
        return self.vhost

    def _recover(self, queue):
        self.recovered.append(queue.name)
        recover(queue, Disk(), False, self.told.append)

    def close(self):
        self.client.connection.lost()
        for queue in self.vhost.queues.values():
            queue.close()
        self.vhost.log.close()
        self.vhost = None

    def again(self):
        if self.vhost is not None:
            self.close()
        return self.open()

    @property
    def folder(self):
        return self.path / folder_name(self.name)

    def publish(self, *keys):
        for key in keys:
            header = b"\0\x3c\0\0" + (1).to_bytes(8) + b"\x10\0\x02"
            self.client.raw(methods.BasicPublish(routing_key=key).frame(1) + header_frame(1, header)
                            + body_frames(1, b"x", 4096))

    def names(self):
        """What is in the vhost's folder, hashes told as the queues' names."""
        known = {folder_name(name): name for name in "abcdefgh"}
        names = os.listdir(self.folder)
        return {known.get(name[:40], name[:40]) + name[40:] for name in names} - {".vhost", DEFINITIONS_FILE}


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    if place.vhost is not None:
        place.close()


def declare(vhost, *names, durable=True):
    for name in names:
        vhost.add_queue(name, durable=durable, auto_delete=False, arguments={})


def test_an_opened_vhost_has_its_durable_things_and_messages_again(place):
    vhost = place.open()
    declare(vhost, "a", "b")
    declare(vhost, "t", durable=False)
    x = vhost.add_exchange("x", "topic", durable=True, auto_delete=True, internal=False, arguments={"k": 1})
    vhost.bind(x, vhost.queue("a"), "#", {"v": "w"})
    place.publish("a", "a", "t")
    for _ in range(2):
        vhost = place.again()
        assert {name: (q.ready, q.durable) for name, q in vhost.queues.items()} == {"a": (2, True), "b": (0, True)}
        x = vhost.exchange("x")
        assert (x.type, x.durable, x.auto_delete, x.arguments) == ("topic", True, True, {"k": 1})
        assert [(b.source, b.routing_key, b.arguments) for b in vhost.queue("a").bindings] == [(x, "#", {"v": "w"})]
        assert place.told == []


def test_only_queues_that_have_a_folder_are_recovered_and_only_messages_make_one(place):
    declare(place.open(), "a", "b")
    assert place.names() == set()
    place.publish("b")
    assert place.names() == {"b"}
    place.again()
    assert place.recovered == ["b"]


def test_transient_queues_are_kept_apart_and_wiped_at_the_next_open(place):
    declare(place.open(), "t", durable=False)
    place.publish("t")
    assert place.names() == {"transient"}
    assert os.listdir(place.folder / "transient") == [folder_name("t")]
    vhost = place.again()
    assert place.names() == set()
    with pytest.raises(NotFound):
        vhost.queue("t")
    place.garbage.flush()
    assert sorted(os.listdir(place.path)) == sorted(["garbage", place.folder.name])
    assert os.listdir(place.path / "garbage") == []


def test_a_durable_queue_of_the_name_of_a_transient_one_has_none_of_its_messages(place):
    declare(place.open(), "a", durable=False)
    place.publish("a")
    declare(place.again(), "a")
    assert place.again().queue("a").ready == 0


def test_the_folder_of_a_queue_that_nothing_defines_is_kept_and_told_of_once(place):
    declare(place.open(), "a")
    place.publish("a", "a")
    before = sorted(os.listdir(place.folder / folder_name("a")))
    place.close()
    os.unlink(place.folder / DEFINITIONS_FILE)
    place.open()
    path = place.folder / folder_name("a")
    assert place.told == [f"{path}: no queue of vhost '/' has its messages here; kept as {path.name}.orphan"]
    assert place.names() == {"a.orphan"}
    assert sorted(os.listdir(f"{path}.orphan")) == before
    declare(place.vhost, "a")
    place.publish("a")
    assert place.again().queue("a").ready == 1
    assert (place.told, place.names()) == ([], {"a", "a.orphan"})


def test_a_folder_that_is_set_aside_again_takes_no_others_place(place):
    for _ in range(3):
        declare(place.open(), "a")
        place.publish("a")
        place.close()
        os.unlink(place.folder / DEFINITIONS_FILE)
    place.open()
    path = place.folder / folder_name("a")
    assert place.told == [f"{path}: no queue of vhost '/' has its messages here; kept as {path.name}.orphan.3"]
    assert {name for name in os.listdir(place.folder) if "orphan" in name} == {
        f"{path.name}.orphan", f"{path.name}.orphan.2", f"{path.name}.orphan.3"}


def test_the_folder_of_a_queue_whose_deletion_was_cut_short_is_removed_without_a_word(place):
    vhost = place.open()
    declare(vhost, "a", "b")
    place.publish("a", "b")
    vhost.delete_queue(vhost.queue("a"))                # With nobody told to remove its files.
    assert place.names() == {"a", "b"}
    place.again()
    assert (place.names(), place.told) == ({"b"}, [])


def test_folders_and_files_of_others_are_left_alone(place):
    place.open()
    for name in ("lost+found", "notes.txt", "0" * 39):
        (place.folder / name).mkdir()
    place.again()
    assert place.names() == {"lost+found", "notes.txt", "0" * 39}
    assert place.told == []


@pytest.mark.parametrize("name", ["/", "", "..", "a/../../b", "a\nb", "ü" * 127, "\udcff"])
def test_every_vhost_has_a_folder_in_the_data_directory_that_says_its_name(tmp_path, name):
    place = Place(tmp_path / "data", name)
    place.path.mkdir()
    place.open()
    place.close()
    (folder,) = os.listdir(place.path)
    assert len(folder) == 40
    assert os.listdir(tmp_path) == ["data"]
    assert (place.path / folder / ".vhost").read_bytes() == name.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", ["q", "..", "a/b", "x" * 255, "a\0b", "\udcfe"])
def test_every_queue_that_has_a_folder_says_its_name_in_it(place, name):
    declare(place.open(), name)
    place.publish(name)
    (queue,) = place.vhost.queues.values()
    assert os.path.dirname(queue.directory) == str(place.folder)
    with open(os.path.join(queue.directory, ".queue"), "rb") as file:
        assert file.read() == name.encode("utf-8", "surrogateescape")
    assert place.again().queue(name).ready == 1


def test_a_folder_made_by_a_start_that_was_cut_short_is_taken_over(place):
    place.folder.mkdir()
    (place.folder / ".vhost.tmp").write_bytes(b"")
    place.open()
    assert (place.folder / ".vhost").read_bytes() == b"/"


def test_an_entry_that_cannot_be_followed_is_told_with_its_file_and_the_rest_holds(place):
    declare(place.open(), "a")
    place.vhost.write(methods.QueueBind(queue="a", exchange="gone", routing_key="k").encode())
    declare(place.vhost, "b")
    vhost = place.again()
    assert place.told == [f"{place.folder / DEFINITIONS_FILE}: entry 2: no exchange 'gone' in vhost '/'"]
    assert list(vhost.queues) == ["a", "b"]


def test_a_damaged_log_stops_the_open_and_is_not_touched(place):
    declare(place.open(), *"abcdefgh")
    place.close()
    path = place.folder / DEFINITIONS_FILE
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{DEFINITIONS_FILE}"):
        place.open()
    assert path.read_bytes() == content


def test_a_log_that_mostly_undoes_itself_is_short_after_the_next_open(place):
    declare(place.open(), "kept", "a")
    for _ in range(20):
        place.vhost.delete_queue(place.vhost.queue("a"))
        declare(place.vhost, "a")
    assert place.vhost.log.frames == 42
    vhost = place.again()
    assert (vhost.log.frames, vhost.deletes, set(vhost.queues)) == (2, 0, {"kept", "a"})
    assert set(place.again().queues) == {"kept", "a"}


@pytest.mark.parametrize("enough", [True, False])
def test_a_log_is_rewritten_at_an_open_when_half_as_much_is_undone_as_is_there(place, enough):
    vhost = place.open()
    names = [f"q{n}" for n in range(20 - len(vhost.exchanges))]
    declare(vhost, *names)
    for _ in range(10 if enough else 9):
        vhost.delete_queue(vhost.queue("q0"))
        declare(vhost, "q0")
    frames = vhost.log.frames
    assert place.again().log.frames == (len(names) if enough else frames)
    assert set(place.vhost.queues) == set(names)


def test_ten_thousand_queues_with_bindings_open(place):
    place.open()
    place.close()
    log = DefinitionsLog(str(place.folder / DEFINITIONS_FILE), Disk())
    log.load()
    payloads = [queue_declare(f"queue {number}", False, {}) for number in range(10_000)]
    payloads += [methods.QueueBind(queue=f"queue {number}", exchange="amq.topic", routing_key=f"key.{number}").encode()
                 for number in range(10_000)]
    log.compact(payloads)
    log.close()
    vhost = place.open()
    assert len(vhost.queues) == vhost.exchange("amq.topic").binding_count == 10_000
    place.publish("queue 0", "queue 9999")
    assert [vhost.queue(f"queue {number}").ready for number in (0, 1, 9999)] == [1, 0, 1]


def test_rules_are_put_in_force_once_when_messages_are_there_and_after_listeners_are(place, monkeypatch):
    declare(place.open(), "a", "b")
    place.publish("a")
    place.close()
    done = []
    monkeypatch.setattr(Queue, "apply_rules", lambda queue, policies: done.append((queue.name, queue.ready)))
    monkeypatch.setattr(Queue, "has_own_rules", True)
    node = Node(place.path)
    place.vhost = load_vhost(place.name, str(place.path), node.core, Disk(), place.garbage, suspect=False,
                             report=place.told.append, recover=place._recover, listen=lambda _: done.append("listens"),
                             prepare=lambda vhost: done.append(len(vhost.queues)))
    assert done == ["listens", 0, ("a", 1), ("b", 0)]


def test_files_of_a_queue_that_is_deleted_are_removed_by_whoever_was_given_for_it(place):
    removed, node = [], Node(place.path)
    declare(place.open(), "a")
    place.close()
    place.vhost = load_vhost(place.name, str(place.path), node.core, Disk(), place.garbage, suspect=False,
                             report=place.told.append, recover=place._recover, remove_files=removed.append)
    queue = place.vhost.queue("a")
    place.vhost.delete_queue(queue)
    assert removed == [queue]


def test_only_the_folder_of_a_vhost_that_was_marked_is_removed(tmp_path):
    place = Place(tmp_path)
    place.open()
    place.close()
    folder = os.path.join(tmp_path, folder_name("/"))
    remove_deleted("/", str(tmp_path), place.garbage)
    place.garbage.flush()
    assert os.path.exists(folder)
    mark_deleted(folder, Disk())
    remove_deleted("/", str(tmp_path), place.garbage)
    place.garbage.flush()
    assert not os.path.exists(folder)


def test_a_vhost_that_is_listed_has_no_mark_after_a_start(tmp_path):
    """Its deletion was not listed before the broker died; a later start must not take it as deleted."""
    place = Place(tmp_path)
    place.open()
    place.close()
    mark_deleted(os.path.join(tmp_path, folder_name("/")), Disk())
    place.open()
    place.close()
    remove_deleted("/", str(tmp_path), place.garbage)
    place.garbage.flush()
    assert os.path.exists(os.path.join(tmp_path, folder_name("/")))
