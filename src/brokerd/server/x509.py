"""Reads from a certificate (X.509, RFC 5280) the names that it is for, and when it expires.  It verifies nothing.

The ssl module decodes a certificate only after a handshake that has verified it, so never an expired one; the package
``cryptography`` costs a broker 11 MiB and 0.1 s.  A certificate is DER: values in values, each a tag, a length and its
octets.  This module walks to the three places that matter, and refuses a certificate that does not follow RFC 5280.
"""

import calendar
import time
from collections.abc import Iterator
from typing import NamedTuple

SEQUENCE, SET, OCTETS, OID, BOOLEAN = 0x30, 0x31, 0x04, 0x06, 0x01
VERSION, EXTENSIONS, DNS_NAME = 0xA0, 0xA3, 0x82  # tags by their place
ALTERNATIVE_NAME, COMMON_NAME = b"\x55\x1d\x11", b"\x55\x04\x03"  # 2.5.29.17 and 2.5.4.3
TEXTS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
TIMES = {0x17: ("%y%m%d%H%M%SZ", 13), 0x18: ("%Y%m%d%H%M%SZ", 15)}
LENGTH_OCTETS_MAX = 4


class Certificate(NamedTuple):
    """The names and the end of a certificate."""

    dns_names: tuple[str, ...]
    common_names: tuple[str, ...]
    expires_at: int  # seconds since the epoch


def read(der: bytes) -> Certificate:
    """Read a certificate.  Raises ValueError."""
    tag, certificate = next(_values(der), (0, b""))
    parts = list(_values(certificate))
    if tag != SEQUENCE or not parts or parts[0][0] != SEQUENCE:
        raise ValueError("no certificate")
    fields = list(_values(parts[0][1]))
    if fields and fields[0][0] == VERSION:
        del fields[0]
    # serial number, algorithm, issuer, validity, subject, key, and what may follow
    if len(fields) < 6 or any(tag != SEQUENCE for tag, _ in fields[1:6]):
        raise ValueError("no certificate")
    names = [name for tag, octets in fields[6:] if tag == EXTENSIONS for name in _dns_names(octets)]
    times = list(_values(fields[3][1]))
    if len(times) != 2:
        raise ValueError("no validity")
    return Certificate(tuple(names), tuple(_common_names(fields[4][1])), _time(*times[1]))


def _values(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and octets of each value.  Raises ValueError."""
    at = 0
    while at < len(octets):
        head = octets[at : at + 2]
        if len(head) < 2 or head[0] & 0x1F == 0x1F:
            raise ValueError("no DER")
        at += 2
        length = head[1]
        if length & 0x80:
            n = length & 0x7F
            if not 0 < n <= LENGTH_OCTETS_MAX or at + n > len(octets):
                raise ValueError("no DER")
            length = int.from_bytes(octets[at : at + n])
            at += n
        if at + length > len(octets):
            raise ValueError("no DER")
        yield head[0], octets[at : at + length]
        at += length


def _dns_names(octets: bytes) -> Iterator[str]:
    """The DNS names of the extension subjectAltName."""
    for _, extensions in _values(octets):
        for _, extension in _values(extensions):
            parts = [part for part in _values(extension) if part[0] != BOOLEAN]  # whether it is critical
            if [tag for tag, _ in parts] == [OID, OCTETS] and parts[0][1] == ALTERNATIVE_NAME:
                for _, names in _values(parts[1][1]):
                    yield from (name.decode("ascii") for tag, name in _values(names) if tag == DNS_NAME)


def _common_names(octets: bytes) -> Iterator[str]:
    for kind, group in _values(octets):
        for _, attribute in _values(group) if kind == SET else ():
            parts = list(_values(attribute))
            if len(parts) == 2 and parts[0] == (OID, COMMON_NAME) and parts[1][0] in TEXTS:
                yield parts[1][1].decode(TEXTS[parts[1][0]])


def _time(tag: int, octets: bytes) -> int:
    if tag not in TIMES or len(octets) != TIMES[tag][1]:
        raise ValueError("no time")
    parts = time.strptime(octets.decode("ascii"), TIMES[tag][0])
    year = parts.tm_year
    if tag == 0x17:  # Two digits: 1950 to 2049.
        year = 1900 + year % 100 if year % 100 >= 50 else 2000 + year % 100
    return calendar.timegm((year, *parts[1:6]))
