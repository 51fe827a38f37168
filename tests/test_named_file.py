"""Reading a file that an option names."""

import errno
import os

import pytest

from brokerd.named_file import read_regular


def test_a_file_is_read_whole(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"


def test_a_file_that_is_too_large_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"123456")
    with pytest.raises(OSError, match="more than 5 octets") as caught:
        read_regular(tmp_path / "file", 5)
    assert caught.value.errno == errno.EFBIG


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        read_regular(tmp_path / "pipe", 5)


def test_a_device_is_refused():
    with pytest.raises(OSError, match="no regular file"):
        read_regular("/dev/zero", 5)
