"""JSON files: replaced whole, and told by line and column when they are broken."""

import os

import pytest

from brokerd.errors import StoreError
from brokerd.store import json_file
from brokerd.store.disk import Disk


class Full(Disk):
    """A disk without room."""

    def pwrite(self, fd, octets, position):
        raise OSError(28, "No space left on device")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "some.json")


def test_what_was_written_is_read(path):
    value = [{"name": "grün/☃", "tags": []}, {"name": "\udcff"}, 1.5, None]
    json_file.replace(path, value, Disk())
    assert json_file.read(path, Disk()) == value


def test_a_file_is_laid_out_for_people(path):
    json_file.replace(path, [{"name": "grün"}], Disk())
    with open(path, encoding="utf-8") as file:
        assert file.read() == '[\n  {\n    "name": "grün"\n  }\n]\n'


def test_a_missing_file_is_none(path):
    assert json_file.read(path, Disk()) is None


@pytest.mark.parametrize(("octets", "told"), [
    (b"", "line 1, column 1: not JSON: Expecting value"),
    (b'[\n  {"name": }\n]', "line 2, column 12: not JSON: Expecting value"),
    (b"[]\n[]", "line 2, column 1: not JSON: Extra data"),
    (b'["a",\n "\xff"]', "line 2, column 3: not UTF-8"),
    (b"[NaN]", "line 1, column 1: not usable JSON: NaN is not JSON"),
    (b"[" * 100_000, "line 1, column 1: not usable JSON: "),
    (b"9" * 10_000, "line 1, column 1: not usable JSON: "),
])
def test_a_broken_file_is_told_by_line_and_column(octets, told, path):
    with open(path, "wb") as file:
        file.write(octets)
    with pytest.raises(StoreError) as caught:
        json_file.read(path, Disk())
    assert str(caught.value).startswith(f"{path}: {told}")


def test_a_file_that_cannot_be_written_keeps_its_content_and_is_named(path):
    json_file.replace(path, ["old"], Disk())
    with pytest.raises(OSError, match="No space left") as caught:
        json_file.replace(path, ["new"], Full())
    assert caught.value.filename == path
    assert json_file.read(path, Disk()) == ["old"]


def test_a_new_content_is_synced_before_it_has_the_name_and_its_directory_after(path, monkeypatch):
    steps = []

    class Watched(Disk):
        def fsync(self, fd, name):
            steps.append("sync " + name)

        def rename(self, old, new):
            steps.append(f"rename {old} {new}")
            super().rename(old, new)

    json_file.replace(path, [], Watched())
    assert steps == [f"sync {path}.tmp", f"rename {path}.tmp {path}", f"sync {path.rpartition('/')[0]}"]


def test_null_is_not_taken_for_a_missing_file(path):
    with open(path, "w") as file:
        file.write("null")
    with pytest.raises(StoreError, match=f"^{path}: not a list of objects$"):
        json_file.JSONFile(path, Disk()).read()


@pytest.mark.parametrize(("content", "told"), [
    ({}, "not a list of objects"),
    ([{"a": 1}, 5], "entry 2 is not an object"),
    ([{"b": 1}], "entry 1 has no a"),
    ([{"a": 1, "c": 1}], "entry 1 has an unknown key 'c'"),
])
def test_rows_name_the_entry_that_is_not_of_the_shape(content, told):
    with pytest.raises(StoreError, match=f"^some.json: {told}$"):
        json_file.rows("some.json", content, ("a",), ("b",))


# --- a file that the broker and an operator write

@pytest.fixture
def kept(path):
    """A file that the broker has written."""
    file = json_file.JSONFile(path, Disk())
    assert file.read() is None
    file.replace([1])
    return file


def edit(path, text):
    with open(path, "w") as file:
        file.write(text)


def test_the_broker_writes_again_what_it_wrote_before(kept, path):
    kept.replace([1, 2])
    kept.replace([3])
    assert json_file.read(path, Disk()) == [3]


def test_what_an_operator_wrote_is_not_written_over_before_it_is_taken_over(kept, path):
    edit(path, "[9]")
    for _ in range(2):
        with pytest.raises(OSError, match="was edited and not read since: send HUP to the broker first") as refused:
            kept.replace([2])
        assert refused.value.filename == path
    assert kept.read_again() == [9]
    with pytest.raises(OSError, match="was edited"):  # Read, but perhaps refused: the broker's state is another.
        kept.replace([2])
    kept.take_over()
    kept.replace([9, 2])
    assert json_file.read(path, Disk()) == [9, 2]


def test_a_change_between_the_read_and_its_taking_over_is_not_lost(kept, path):
    edit(path, "[9]")
    kept.read_again()
    edit(path, "[9, 10]")
    kept.take_over()
    with pytest.raises(OSError, match="was edited"):
        kept.replace([2])
    assert json_file.read(path, Disk()) == [9, 10]


def test_what_the_broker_wrote_is_there_at_the_next_read(kept):
    kept.replace([1, 2])
    assert kept.read_again() == [1, 2]


def test_a_file_that_has_gone_is_no_empty_one(kept, path):
    os.unlink(path)
    with pytest.raises(StoreError, match=r"some\.json: is missing; an empty list, \[\], would be none of them"):
        kept.read_again()
    assert kept.read() is None
    with pytest.raises(OSError, match="was edited"):
        kept.replace([2])


def test_a_file_that_never_was_may_be_missing_still(path):
    file = json_file.JSONFile(path, Disk())
    file.read()
    file.take_over()
    assert file.read_again() is None


def test_changes_are_told_by_name_and_not_at_length():
    changed = json_file.changes({"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5, "e": 6})
    assert changed == (["d", "e"], ["a"], ["c"])
    assert str(changed) == "2 added (d, e), 1 removed (a), 1 changed (c)"
    assert not json_file.changes({"a": 1}, {"a": 1})
    assert str(json_file.changes({}, {})) == "nothing changed"
    assert json_file.named([str(number) for number in range(8)]) == "0, 1, 2, 3, 4 and 3 more"
    assert json_file.named(["a"]) == "a"
