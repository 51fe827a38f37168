"""CRC32C in plain Python, and where the compiled one is not there."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from brokerd import plane
from brokerd.store import checksums


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_the_table_crc_is_the_compiled_one(data, more):
    assert checksums.crc32c_table(data) == plane.crc32c(data) == checksums.crc32c(data)
    assert checksums.crc32c_table(more, checksums.crc32c_table(data)) == plane.crc32c(data + more)


def test_the_crc_is_castagnolis():
    assert checksums.crc32c_table(b"123456789") == 0xE3069283


def test_without_the_compiled_plane_the_crc_is_the_same():
    code = ("import sys; sys.modules['brokerd.plane'] = None; from brokerd.store import format as layout;"
            "sys.exit(layout.crc32c(b'123456789') != 0xE3069283)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
