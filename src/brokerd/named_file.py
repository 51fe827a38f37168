"""Reads a file that an option names.  Knows nothing of its contents."""

import errno
import os
import stat


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """A file that somebody names: read at once and whole, also while a broker works.  A pipe would wait for its writer,
    and a device never ends.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most} octets")
    return content
