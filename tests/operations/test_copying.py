"""Files copied up to a length, by whatever way there is; how a queue is cut is told in test_dump."""

import errno
import os

import pytest

from brokerd.operations import copying


def no_way(*_):
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.parametrize("missing", [[], ["copy_file_range"], ["copy_file_range", "sendfile"]])
@pytest.mark.parametrize("octets", [0, 1, 4096, 9999])
def test_files_are_copied_up_to_a_length_by_whatever_way_there_is(tmp_path, monkeypatch, missing, octets):
    monkeypatch.setattr(copying, "CHUNK_OCTETS", 4096)
    for name in missing:
        monkeypatch.setattr(os, name, no_way)
    content = os.urandom(9999)
    (tmp_path / "a").write_bytes(content + b"more" * (octets < 9999))
    with open(tmp_path / "a", "rb") as a, open(tmp_path / "b", "wb") as b:
        counts = list(copying.copy_chunks(a.fileno(), b.fileno(), octets))
    assert (tmp_path / "b").read_bytes() == content[:octets]
    assert (sum(counts), max(counts, default=0) <= 4096) == (octets, True)


def test_a_file_that_is_shorter_than_it_should_be_is_copied_as_far_as_it_goes(tmp_path):
    (tmp_path / "a").write_bytes(b"short")
    with open(tmp_path / "a", "rb") as a, open(tmp_path / "b", "wb") as b:
        assert list(copying.copy_chunks(a.fileno(), b.fileno(), 100)) == [5]
    assert (tmp_path / "b").read_bytes() == b"short"
