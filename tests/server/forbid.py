"""Forbids a process io_uring, as the seccomp profiles of container runtimes do, then becomes another program:

    python forbid.py PROGRAM ARGUMENT...

Such a call fails with EPERM.
"""

import ctypes
import errno
import os
import struct
import sys

FIRST, LAST = 425, 427          # io_uring_setup, _enter, _register: the same numbers on all machines
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_AT_LEAST, JUMP_IF_MORE, RETURN = 0x20, 0x35, 0x25, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000

# Classic BPF: operation, how far to jump if true, if false, operand.
PROGRAM = [
    (LOAD, 0, 0, 0), (JUMP_IF_AT_LEAST, 0, 2, FIRST), (JUMP_IF_MORE, 1, 0, LAST),
    (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, ALLOW),
]  # fmt: skip


def forbid():
    """From now on calls of io_uring fail in this process.  Raises OSError."""
    octets = b"".join(struct.pack("HBBI", *line) for line in PROGRAM)
    lines = ctypes.create_string_buffer(octets, len(octets))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(PROGRAM), ctypes.addressof(lines)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
