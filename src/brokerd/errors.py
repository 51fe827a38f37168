"""The errors of brokerd.  An error that a peer gets carries its reply code.

Any module raises them.  Only ``session/connection.py`` turns one into a ``channel.close`` or ``connection.close``, and
only ``cli`` turns one into an exit status.  Codes and names: AMQP 0-9-1 specification, section 1.5 (reply codes).  The
reply text that a peer gets is ``NAME - message``, as RabbitMQ words it.
"""

from collections.abc import Callable, Iterable
from typing import Any


class BrokerError(Exception):
    """Any error that brokerd reports with a message instead of a traceback."""


class ConfigError(BrokerError):
    """The configuration is wrong: the process prints this one line and exits with status 2."""


class StoreError(BrokerError):
    """A file of the data directory is damaged or cannot be read; the text names the file and the offset."""


class AMQPError(BrokerError):
    """An error that the broker answers with a close method.

    ``reply_code`` and ``name`` are the specification's.  A ``hard`` error closes the connection, any other only the
    channel on which it happened.
    """

    reply_code = 541
    name = "INTERNAL_ERROR"
    hard = True

    @property
    def reply_text(self) -> str:
        """The text for the peer, cut to the 255 octets of a short string."""
        # Names may contain octets that are not UTF-8 (as surrogates); a question mark stands for each of these.
        octets = f"{self.name} - {self.args[0] if self.args else ''}".encode("utf-8", "replace")
        return octets[:255].decode(errors="ignore")


class NotAnsweredYet(BrokerError):
    """What decides about a request is not known: another program must be asked whether it is allowed, or a search
    takes too long for one turn.

    Raised before anything has happened.  Have it found out, then do the same again.
    """

    def __init__(self) -> None:
        super().__init__("not answered yet")

    def find_out(self, node: Any, then: Callable[[], object]) -> None:
        """Begin to find it out, on that node; then ``then()`` is called, in another turn."""
        raise NotImplementedError


class ChannelError(AMQPError):
    """Soft error: closes the channel on which it happened; the connection stays open."""

    hard = False


class ConnectionError_(AMQPError):
    """Hard error: closes the connection."""


class ContentTooLarge(ChannelError):
    reply_code, name = 311, "CONTENT_TOO_LARGE"


class AccessRefused(ChannelError):
    reply_code, name = 403, "ACCESS_REFUSED"


class NotFound(ChannelError):
    reply_code, name = 404, "NOT_FOUND"


class ResourceLocked(ChannelError):
    reply_code, name = 405, "RESOURCE_LOCKED"


class PreconditionFailed(ChannelError):
    reply_code, name = 406, "PRECONDITION_FAILED"


class LoginRefused(ConnectionError_):
    """The login failed; the broker answers 403 only to clients that announce ``authentication_failure_close``."""

    reply_code, name = 403, "ACCESS_REFUSED"


class ConnectionForced(ConnectionError_):
    reply_code, name = 320, "CONNECTION_FORCED"


class InvalidPath(ConnectionError_):
    reply_code, name = 402, "INVALID_PATH"


class FrameError(ConnectionError_):
    reply_code, name = 501, "FRAME_ERROR"


class SyntaxError_(ConnectionError_):
    reply_code, name = 502, "SYNTAX_ERROR"


class CommandInvalid(ConnectionError_):
    reply_code, name = 503, "COMMAND_INVALID"


class ChannelStateError(ConnectionError_):
    reply_code, name = 504, "CHANNEL_ERROR"


class UnexpectedFrame(ConnectionError_):
    reply_code, name = 505, "UNEXPECTED_FRAME"


class ResourceError(ConnectionError_):
    reply_code, name = 506, "RESOURCE_ERROR"


class NotAllowed(ConnectionError_):
    reply_code, name = 530, "NOT_ALLOWED"


class NotImplemented_(ConnectionError_):
    reply_code, name = 540, "NOT_IMPLEMENTED"


class InternalError(ConnectionError_):
    reply_code, name = 541, "INTERNAL_ERROR"


def in_words(error: Exception) -> str:
    """The error in one line for people: an error of the kernel with its file's name first, and without its number."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A hint at the one of ``known`` that ``name`` is closest to, to follow an error's text; "" if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1) if isinstance(name, str) and len(name) < 256 else []
    return f"; did you mean '{close[0]}'?" if close else ""


def by_reply_code(code: int, message: str, *, hard: bool) -> AMQPError:
    """The error with this reply code; the plane reports its errors as a number and a text."""
    base = ConnectionError_ if hard else ChannelError
    for cls in base.__subclasses__():
        if cls.reply_code == code:
            return cls(message)
    return InternalError(message)
