"""One request over HTTP, as the back-ends of logins send it: no redirects, a bounded answer, and a time for all of it.

Waits for another machine, so threads call it.  Knows neither tokens nor passwords.
"""

import os
from functools import lru_cache
from typing import Any

READ_OCTETS = 65536


def fetch(
    address: str, *, seconds: float, octets_most: int, ca_cert: str = "", form: bytes | None = None
) -> tuple[int, bytes]:
    """The status, below 300, and the body of what stands at the address.  ``form``: POST this, else GET.

    ``ca_cert``: a file with the CAs of its server; "": the system's.  Raises OSError, also for a status of 300 or more,
    and where the whole answer does not come in time; ValueError for a wrong address, and for a body
    of more than ``octets_most``.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request

    if not address.startswith(("http://", "https://")):
        raise ValueError(f"{address!r:.200} is no URL of http or https")
    octets = b""
    try:
        with _opener(ca_cert, _changed(ca_cert)).open(Request(address, data=form), timeout=seconds) as answer:
            status = answer.status
            while len(octets) <= octets_most:
                more = answer.read1(READ_OCTETS)
                if not more:
                    break
                octets += more
    except HTTPError as error:
        error.close()
        raise OSError(f"status {error.code}") from None
    except HTTPException as error:
        raise ValueError(f"no answer of HTTP: {type(error).__name__}") from None
    if len(octets) > octets_most:
        raise ValueError(f"more than {octets_most} octets")
    return status, octets


def _changed(ca_cert: str) -> int:
    """When the file was changed last, so that new CAs count from then on.  Raises OSError."""
    return os.stat(ca_cert).st_mtime_ns if ca_cert else 0


@lru_cache(8)
def _opener(ca_cert: str, changed: int) -> Any:
    import ssl
    from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
    from io import BufferedReader, RawIOBase
    from time import monotonic
    from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, build_opener

    context = ssl.create_default_context(cafile=ca_cert or None)

    class Timed(RawIOBase):
        """A socket's octets until a time: a timeout of the socket would begin anew with each octet that comes."""

        def __init__(self, sock: Any, until: float) -> None:
            self._sock, self._until = sock, until
            self._file = sock.makefile("rb", buffering=0)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any, /) -> int | None:
            left = self._until - monotonic()
            if left <= 0:
                raise TimeoutError("no whole answer in time")
            self._sock.settimeout(left)
            read: int | None = self._file.readinto(buffer)
            return read

        def close(self) -> None:
            self._file.close()
            super().close()

    class Answers:
        """A connection whose answer has to come within the connection's timeout, header and body together."""

        timeout: float

        def response_class(self, sock: Any, *arguments: Any, **options: Any) -> HTTPResponse:
            answer = HTTPResponse(sock, *arguments, **options)
            answer.fp.close()
            answer.fp = BufferedReader(Timed(sock, monotonic() + self.timeout))
            return answer

    class Plain(Answers, HTTPConnection):  # type: ignore[misc]  # A method stands for the class of answers.
        pass

    class Secure(Answers, HTTPSConnection):  # type: ignore[misc]
        pass

    class OpensPlain(HTTPHandler):
        def http_open(self, request: Any) -> Any:
            return self.do_open(Plain, request)

    class OpensSecure(HTTPSHandler):
        def https_open(self, request: Any) -> Any:
            return self.do_open(Secure, request, context=context)

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any) -> None:
            return None  # It could lead from HTTPS to HTTP.

    return build_opener(NoRedirects, OpensPlain, OpensSecure)
