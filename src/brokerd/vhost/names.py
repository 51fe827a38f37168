"""Names of queues, exchanges and consumers: stripping them, reserved ones, random ones.

A name is any text of at most 255 octets (AMQP's short string).  Error texts name a thing as RabbitMQ does:
``queue 'q' in vhost '/'``.  Knows nothing of what exists.
"""

from base64 import urlsafe_b64encode
from os import urandom

from brokerd.errors import AccessRefused

RESERVED_PREFIX = "amq."
SERVER_NAMED_PREFIX = "amq.gen-"
CONSUMER_TAG_PREFIX = "amq.ctag-"
_CUT = {ord("\r"): None, ord("\n"): None}


def strip_cr_lf(name: str) -> str:
    """``name`` without CR and LF (RabbitMQ strips rather than refuses them)."""
    if "\n" in name or "\r" in name:
        return name.translate(_CUT)
    return name


def random_name(prefix: str) -> str:
    """``prefix`` and 22 characters of base64url: 128 random bits."""
    return prefix + urlsafe_b64encode(urandom(16))[:22].decode()


def check_not_reserved(kind: str, name: str) -> None:
    """Refuse a name that begins with ``amq.`` (403)."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")
