"""What certificates in files say of themselves: the names that they are for, and the time at which they expire.

A client names the host that it wants (SNI); ``chooser`` answers with the context whose certificate is for that name.

Python decodes certificates of files by ``ssl._ssl._test_decode_cert``.  Python's own tests live on it, and all versions
have it; the documented ways decode a certificate only after a handshake, and none that has expired.  Knows no options.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from brokerd.named_file import read_regular

DECODE: Callable[[str], dict[str, Any]] = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]
SOON_SECONDS = 30 * 86400  # what expires within this time is worth a warning


class Certificate(NamedTuple):
    """The first certificate of a file.  ``expires_at``: of the first in its chain that does, in seconds (epoch)."""

    file: str
    names: tuple[str, ...]
    expires_at: int


def read(path: str, octets_max: int) -> Certificate:
    """Read a file with a certificate and its chain, or with CAs (PEM).  Raises OSError, also ssl.SSLError."""
    text = read_regular(path, octets_max).decode("utf-8", "replace")
    first = DECODE(path)
    names = [value.lower() for kind, value in first.get("subjectAltName", ()) if kind == "DNS"]
    if not names:
        names = [value.lower() for part in first.get("subject", ()) for kind, value in part if kind == "commonName"]
    # Certificates of CAs, which those of a chain are but the first: OpenSSL decodes them once it trusts them.
    scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    scratch.load_verify_locations(cadata=text)
    chain = [first, *scratch.get_ca_certs()]
    return Certificate(path, tuple(names), int(min(ssl.cert_time_to_seconds(each["notAfter"]) for each in chain)))


def chooser(contexts: Mapping[str, ssl.SSLContext]) -> Callable[[Any, str | None, ssl.SSLContext], None]:
    """The ``sni_callback`` that takes the context of the client's name, ``*.example.org`` for ``a.example.org`` too.

    A client that gives no name, or one that nobody knows, keeps the context that it has.
    """

    def choose(session: Any, name: str | None, context: ssl.SSLContext) -> None:
        if name is not None:
            wanted = name.lower()
            found = contexts.get(wanted) or contexts.get(f"*.{wanted.partition('.')[2]}")
            if found is not None:
                session.context = found

    return choose


def warnings(certificates: list[Certificate], now: float) -> list[str]:
    """A line for each certificate that has expired or soon will."""
    lines = []
    for each in certificates:
        if each.expires_at <= now + SOON_SECONDS:
            verb = "has expired" if each.expires_at <= now else "expires"
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(each.expires_at))
            lines.append(f"the certificate of {each.file} {verb}: {when}")
    return lines
