"""Password hashes as RabbitMQ writes them, so that its definitions can be taken over.

    base64 of   salt, 4 octets | digest of salt and password

Passwords are octets; where they come as text they are UTF-8.  Knows nothing of users.
"""

import os
from binascii import Error, a2b_base64, b2a_base64

SHA256 = "rabbit_password_hashing_sha256"
# Names in definitions and the hash behind each; md5 is what RabbitMQ wrote before 3.6.
ALGORITHMS = {
    SHA256: "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
_DIGEST_OCTETS = {"sha256": 32, "sha512": 64, "md5": 16}
SALT_OCTETS = 4


def hash_password(password: str | bytes, algorithm: str = SHA256) -> str:
    """The hash of ``password`` with a new salt.  ``algorithm`` is one of ``ALGORITHMS``."""
    salt = os.urandom(SALT_OCTETS)
    return b2a_base64(salt + _digest(salt, password, algorithm), newline=False).decode()


def verify(password: str | bytes, password_hash: str, algorithm: str = SHA256) -> bool:
    """Whether ``password`` is the one that was hashed.  An empty password or hash never is (RabbitMQ)."""
    if not password or not password_hash or not is_hash(password_hash, algorithm):
        return False
    from hmac import compare_digest  # With hashlib, needed at the first login only.

    octets = a2b_base64(password_hash)
    return compare_digest(octets[SALT_OCTETS:], _digest(octets[:SALT_OCTETS], password, algorithm))


def is_hash(password_hash: str, algorithm: str) -> bool:
    """Whether this is a hash that ``algorithm`` can have made; the empty one, of a user who cannot log in, is."""
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
    import hashlib  # A start that finds its users does without it.

    octets = password.encode("utf-8", "surrogateescape") if isinstance(password, str) else password
    return hashlib.new(ALGORITHMS[algorithm], salt + octets, usedforsecurity=False).digest()
