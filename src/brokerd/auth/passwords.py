"""Password hashes in RabbitMQ's format, so that brokerd can import RabbitMQ's definitions.

    base64 of   salt, 4 octets | digest of salt and password

Passwords are octets; a password that comes as text is encoded as UTF-8.  Knows nothing of users.
"""

import os
from binascii import Error, a2b_base64, b2a_base64
from functools import lru_cache

SHA256 = "rabbit_password_hashing_sha256"
# Each name that definitions use, and the hash that it means.  RabbitMQ wrote md5 before 3.6.
ALGORITHMS = {
    SHA256: "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
_DIGEST_OCTETS = {"sha256": 32, "sha512": 64, "md5": 16}
SALT_OCTETS = 4
HASHES_REMEMBERED = 256  # decoded


def hash_password(password: str | bytes, algorithm: str = SHA256) -> str:
    """The hash of ``password`` with a new salt.  ``algorithm`` is one of ``ALGORITHMS``."""
    salt = os.urandom(SALT_OCTETS)
    return b2a_base64(salt + _digest(salt, password, algorithm), newline=False).decode()


def verify(password: str | bytes, password_hash: str, algorithm: str = SHA256) -> bool:
    """Whether ``password`` has this hash.  False for an empty password or an empty hash (RabbitMQ)."""
    octets = _decoded(password_hash, algorithm)
    if not password or not octets:
        return False
    from hmac import compare_digest  # Only the first login needs this, and hashlib, which comes with it.

    return compare_digest(octets[SALT_OCTETS:], _digest(octets[:SALT_OCTETS], password, algorithm))


@lru_cache(maxsize=HASHES_REMEMBERED)
def _decoded(password_hash: str, algorithm: str) -> bytes:
    """Salt and digest in the hash; nothing where it is empty or no hash."""
    return a2b_base64(password_hash) if is_hash(password_hash, algorithm) else b""


def is_hash(password_hash: str, algorithm: str) -> bool:
    """Whether ``algorithm`` can have made this hash.  True for an empty hash: its user cannot log in by password."""
    if algorithm not in ALGORITHMS:
        return False
    if not password_hash:
        return True
    try:
        octets = a2b_base64(password_hash, strict_mode=True)
    except (Error, ValueError):
        return False
    return len(octets) == SALT_OCTETS + _DIGEST_OCTETS[ALGORITHMS[algorithm]]


def _digest(salt: bytes, password: str | bytes, algorithm: str) -> bytes:
    import hashlib  # A start that finds users.json need not hash, and saves this import.

    octets = password.encode("utf-8", "surrogateescape") if isinstance(password, str) else password
    return hashlib.new(ALGORITHMS[algorithm], salt + octets, usedforsecurity=False).digest()
