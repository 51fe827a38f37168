"""Reads from certificates in files the names that they are for, and the time at which they expire.

A client names the host that it wants (SNI); ``chooser`` answers with the context that has the certificate for that
name.

Knows no options.
"""

import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from brokerd.named_file import read_regular

PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
SOON_SECONDS = 30 * 86400  # what expires within this time is worth a warning


class Certificate(NamedTuple):
    """The first certificate of a file.  ``expires_at``: of the first in its chain that does, in seconds (epoch)."""

    file: str
    names: tuple[str, ...]
    expires_at: int


def read(path: str, octets_max: int) -> Certificate:
    """Read a file with a certificate and its chain, or with CAs (PEM).  Raises OSError, also ssl.SSLError."""
    from brokerd.server import x509  # A broker without TLS does without.

    found = []
    for block in PEM.findall(read_regular(path, octets_max).decode("utf-8", "replace")):
        try:
            found.append(x509.read(ssl.PEM_cert_to_DER_cert(block)))
        except ValueError as error:  # binascii's is one, too.
            raise ssl.SSLError(f"a certificate in it cannot be read: {error}") from None
    if not found:
        raise ssl.SSLError("no certificate is in it")
    names = found[0].dns_names or found[0].common_names
    return Certificate(path, tuple(map(str.lower, names)), min(each.expires_at for each in found))


def chooser(contexts: Mapping[str, ssl.SSLContext]) -> Callable[[Any, str | None, ssl.SSLContext], None]:
    """The ``sni_callback`` that takes the context of the client's name, ``*.example.org`` for ``a.example.org`` too.

    A client that gives no name, or an unknown one, keeps the context that it has.
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
