"""The keys of one exchange on disk: after kill -9, after a power cut at any moment, when its files are many."""

import os
from random import Random

import pytest

from brokerd import plane
from brokerd.store import key_files, key_log
from brokerd.store.disk import Disk
from brokerd.store.format import FOR_EVER, HEADER_OCTETS, KEY_ROW, KEY_ROW_OCTETS, NOT_LASTING
from brokerd.store.key_files import KeyFiles
from brokerd.store.key_log import KeyLog
from brokerd.testing.disk import FillableDisk, ForgetfulDisk

SIZE = 1000


class Broker:
    """A log over a folder, with the window it fills."""

    def __init__(self, directory, disk=None, *, size=SIZE, suspect=False):
        self.directory = str(directory)
        os.makedirs(self.directory, exist_ok=True)
        self.told = []
        self.now_ms = 1
        self.files = KeyFiles(self.directory, disk or Disk(), self.told.append, lambda: self.now_ms * 1_000_000)
        self.window = plane.Window(size)
        self.log = KeyLog(self.files, f"{self.directory}/keys.x", self.window)
        self.log.read(suspect=suspect)
        self.log.enter([])

    def store(self, *hashes, lasting=True, expires=FOR_EVER):
        for hash_ in hashes:
            self.window.enter(hash_, expires, self.now_ms)
            self.log.append(hash_, hash_, expires, lasting=lasting)

    def known(self, count):
        return [hash_ for hash_ in range(1, count) if self.window.knows(hash_, self.now_ms)]

    @property
    def numbers(self):
        return sorted(int(name[7:]) for name in os.listdir(self.directory) if name.startswith("keys.x."))


@pytest.fixture
def few_rows(monkeypatch):
    """Files of four rows."""
    monkeypatch.setattr(key_log, "ROWS_MIN", 4)


def test_kill_9_takes_no_row(tmp_path):
    broker = Broker(tmp_path)
    assert not broker.log.cut_short
    broker.store(1, 2, 3)
    broker.store(4, lasting=False)
    again = Broker(tmp_path)
    assert again.known(10) == [1, 2, 3, 4]
    assert again.log.cut_short
    again.store(5)
    assert Broker(tmp_path).known(10) == [1, 2, 3, 4, 5]


def test_a_broker_that_died_before_its_first_row_is_noticed(tmp_path):
    Broker(tmp_path).log.begin()
    assert Broker(tmp_path).log.cut_short


def test_after_a_clean_stop_nothing_is_missed_and_a_power_cut_later_takes_nothing(tmp_path):
    broker = Broker(tmp_path)
    broker.store(1, 2)
    broker.store(3, lasting=False)
    broker.log.close()
    assert Broker(tmp_path).log.cut_short       # the end has not come to its end
    broker.log.mark_all_synced()
    again = Broker(tmp_path)
    assert not again.log.cut_short
    assert again.known(10) == [1, 2, 3]
    assert Broker(tmp_path, suspect=True).known(10) == [1, 2, 3]


def test_after_a_power_cut_only_rows_whose_messages_were_synced_are_believed(tmp_path):
    broker = Broker(tmp_path)
    broker.store(1)
    broker.store(2, lasting=False)
    broker.store(3)
    sync = broker.log.begin_sync()
    broker.store(4)             # comes while the messages before it are synced
    assert Broker(tmp_path, suspect=True).known(10) == []
    sync()
    assert Broker(tmp_path, suspect=True).known(10) == [1, 3]
    broker.log.begin_sync()()
    assert Broker(tmp_path, suspect=True).known(10) == [1, 3, 4]
    assert Broker(tmp_path).known(10) == [1, 2, 3, 4]


def test_what_a_broker_that_died_had_not_synced_is_safe_once_all_is(tmp_path):
    Broker(tmp_path).store(1, 2)
    again = Broker(tmp_path)
    assert Broker(tmp_path, suspect=True).known(10) == []
    again.log.mark_all_synced()
    later = Broker(tmp_path, suspect=True)
    assert (later.known(10), later.log.cut_short) == ([1, 2], False)


def test_after_a_power_cut_rows_that_are_not_believed_stay_so(tmp_path):
    broker = Broker(tmp_path)
    broker.store(1)
    broker.log.begin_sync()()
    broker.store(2)
    again = Broker(tmp_path, suspect=True)
    again.log.mark_all_synced()
    assert Broker(tmp_path, suspect=True).known(10) == [1]


def test_keys_that_the_log_had_missed_are_entered_in_order_of_time(tmp_path):
    broker = Broker(tmp_path, size=3)
    broker.store(2, 6)
    broker.log.begin_sync()()
    broker.store(9)
    again = Broker(tmp_path, suspect=True)
    log = KeyLog(again.files, f"{tmp_path}/keys.x", plane.Window(3))
    log.read(suspect=True)
    assert (log.knows(), log.last_ns) == ({2, 6}, 6)
    log.enter([(1, 1, FOR_EVER), (7, 7, FOR_EVER)])
    log.begin_sync()()
    assert Broker(tmp_path, size=3, suspect=True).known(10) == [2, 6, 7]


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_at_any_moment_takes_no_confirmed_key_and_invents_none(tmp_path, few_rows, seed):
    random = Random(seed)
    (tmp_path / "data").mkdir()
    disk = ForgetfulDisk(str(tmp_path / "data"))
    broker = Broker(tmp_path / "data", disk)
    disk._everything_is_synced()
    broker.files.hash_of(b"made")
    confirmed, on_disk, under_way = set(), set(), None
    for hash_ in range(1, random.randrange(2, 40)):
        broker.store(hash_, lasting=random.random() < 0.8)
        if under_way is not None and random.random() < 0.5:
            sync, covered = under_way
            on_disk |= covered          # The messages are; then the rows are marked.
            sync()
            confirmed |= covered
            under_way = None
        if under_way is None and random.random() < 0.4:
            under_way = broker.log.begin_sync(), set(range(1, hash_ + 1))
    if under_way is not None and random.random() < 0.5:
        on_disk |= under_way[1]
    disk.lose_power(str(tmp_path / "after"), random)
    disk.release()
    found = set(Broker(tmp_path / "after", suspect=True).known(40))
    promised = {row[0] for number in broker.numbers for row in KEY_ROW.iter_unpack(
        key_files.read(broker.log.path(number), Disk(), log=True).rows) if not row[0] & NOT_LASTING}
    assert confirmed & promised <= found
    assert found <= on_disk


def test_files_are_begun_anew_and_go_when_the_window_has_passed_them(tmp_path, few_rows):
    broker = Broker(tmp_path, size=6)
    broker.store(*range(1, 30))
    broker.log.begin_sync()()
    broker.files.sweep()
    assert len(broker.numbers) < 5
    assert Broker(tmp_path, size=6).known(40) == list(range(24, 30))
    again = Broker(tmp_path, size=6)
    again.store(*range(30, 50))
    again.files.sweep()
    assert Broker(tmp_path, size=6).known(60) == list(range(44, 50))
    assert again.numbers[0] > 5


def test_files_go_when_their_keys_are_over(tmp_path, few_rows):
    broker = Broker(tmp_path)
    broker.store(*range(1, 14), expires=5)
    assert len(broker.numbers) > 1
    broker.now_ms = 5
    broker.files.sweep()
    assert len(broker.numbers) == 1     # the one that is written to


def test_a_file_stays_until_the_last_of_its_keys_is_over(tmp_path, few_rows):
    broker = Broker(tmp_path)
    broker.store(1, expires=100)
    broker.store(2, 3, 4, 5, expires=5)
    broker.now_ms = 5
    broker.files.sweep()
    assert broker.numbers == [1, 2]
    broker.now_ms = 100
    broker.files.sweep()
    assert broker.numbers == [2]


def test_full_files_are_closed_when_no_sync_is_to_come(tmp_path, few_rows):
    broker = Broker(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    broker.store(*range(1, 200), lasting=False)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    broker.store(*range(200, 400))
    broker.log.begin_sync()()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    broker.log.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_broker_that_lost_power_never_wrote_is_no_damage(tmp_path):
    broker = Broker(tmp_path)
    broker.store(1)
    (tmp_path / "keys.x.0000000002").write_bytes(b"")
    again = Broker(tmp_path, suspect=True)
    assert (again.told, again.numbers) == ([], [1])
    (tmp_path / "keys.x.0000000002").write_bytes(b"?" * 100)
    again = Broker(tmp_path)
    assert "keys.x.0000000002: damaged" in again.told[0]


class FullDisk(Disk):
    """A disk that may refuse every octet, also inside a file: one that copies what it writes."""

    full = False

    def pwrite(self, fd, octets, position):
        if self.full:
            raise OSError(28, "No space left on device")
        super().pwrite(fd, octets, position)


def test_rows_that_a_full_disk_refused_are_written_before_later_ones(tmp_path):
    disk = FullDisk()
    broker = Broker(tmp_path, disk)
    broker.store(1)
    disk.full = True
    for hash_ in (2, 3):
        with pytest.raises(OSError, match="No space"):
            broker.store(hash_)
    assert broker.log.room == 0
    with pytest.raises(OSError, match="No space"):
        broker.log.reserve(1)
    disk.full = False
    broker.log.reserve(1)
    assert broker.log.room >= 1
    assert Broker(tmp_path).known(10) == [1, 2, 3]
    broker.store(4)
    assert [row[1] for file in Broker(tmp_path).log._found for row in KEY_ROW.iter_unpack(file.rows)] == [1, 2, 3, 4]


@pytest.mark.parametrize("room_comes", [True, False])
def test_a_clean_stop_marks_no_file_that_lacks_a_row(tmp_path, room_comes):
    disk = FullDisk()
    broker = Broker(tmp_path, disk)
    broker.store(1)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        broker.store(2)
    disk.full = not room_comes
    broker.log.close()
    disk.full = False
    broker.log.mark_all_synced()
    again = Broker(tmp_path)
    assert (again.known(10), again.log.cut_short) == (([1, 2], False) if room_comes else ([1], True))


def test_rows_for_which_there_is_room_are_written_on_a_full_disk(tmp_path):
    disk = FillableDisk()
    broker = Broker(tmp_path, disk)
    broker.log.reserve(1)
    disk.full = True
    room = broker.log.room
    broker.store(*range(1, room + 1))
    with pytest.raises(OSError, match="No space"):
        broker.log.reserve(1)
    assert Broker(tmp_path).known(room + 2) == list(range(max(1, room - SIZE + 1), room + 1))


def test_a_start_whose_disk_is_full_leaves_the_missed_keys_to_the_next_one(tmp_path):
    Broker(tmp_path).store(1)
    disk = FillableDisk()
    disk.full = True
    again = Broker(tmp_path, disk)
    assert again.log.cut_short
    with pytest.raises(OSError, match="No space"):
        again.log.enter([(2, 2, FOR_EVER)])
    again.log.close()
    again.log.mark_all_synced()
    assert Broker(tmp_path).log.cut_short


def test_no_row_of_zeros_is_left_in_a_file_that_was_closed(tmp_path):
    broker = Broker(tmp_path)
    broker.store(1, 2)
    broker.log.close()
    assert (tmp_path / "keys.x.0000000001").stat().st_size == HEADER_OCTETS + 2 * KEY_ROW_OCTETS


def test_the_log_of_a_deleted_exchange_goes_and_no_other(tmp_path):
    broker, other = Broker(tmp_path), Broker(tmp_path)
    other.log = KeyLog(other.files, f"{tmp_path}/keys.xy", other.window)
    broker.store(1)
    other.store(2)
    broker.log.remove()
    assert sorted(os.listdir(tmp_path)) == ["keys.secret", "keys.xy.0000000001"]


def test_a_sync_of_a_log_whose_vhost_is_deleted_meanwhile_is_no_failure(tmp_path):
    broker = Broker(tmp_path / "vhost")
    broker.store(1)
    sync = broker.log.begin_sync()
    broker.log.close()
    (tmp_path / "vhost").rename(tmp_path / "garbage")
    sync()


def test_a_sync_marks_the_rows_up_to_the_last_that_it_covers_and_none_behind(tmp_path):
    broker = Broker(tmp_path)
    broker.log.append_rows(b"".join(KEY_ROW.pack(n, n, FOR_EVER) for n in (1, 2, 3)), 2, FOR_EVER)
    broker.log.begin_sync()()
    assert Broker(tmp_path, suspect=True).known(10) == [1, 2]
    assert Broker(tmp_path).known(10) == [1, 2, 3]


def test_the_last_row_is_that_of_the_newest_file(tmp_path, few_rows):
    Broker(tmp_path).store(*range(1, 11))
    again = Broker(tmp_path)
    assert len(again.numbers) > 1
    log = KeyLog(again.files, f"{tmp_path}/keys.x", plane.Window(SIZE))
    log.read(suspect=False)
    assert log.last_ns == 10
