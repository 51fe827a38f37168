"""JSON files: replaced whole, and told by line and column when they are broken."""

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


@pytest.mark.parametrize(("content", "told"), [
    ({}, "not a list of objects"),
    ([{"a": 1}, 5], "entry 2 is not an object"),
    ([{"b": 1}], "entry 1 has no a"),
    ([{"a": 1, "c": 1}], "entry 1 has an unknown key 'c'"),
])
def test_rows_name_the_entry_that_is_not_of_the_shape(content, told):
    with pytest.raises(StoreError, match=f"^some.json: {told}$"):
        json_file.rows("some.json", content, ("a",), ("b",))
