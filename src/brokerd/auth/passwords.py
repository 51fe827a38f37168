"""Password hashes in the formats of RabbitMQ and LavinMQ, so that brokerd can import the definitions of both.

    RabbitMQ's    base64 of   salt, 4 octets | digest of salt and password
    LavinMQ's     bcrypt's own, "$2b$10$..."

New hashes are bcrypt's.  To check one takes some 50 ms, so this is done in a thread, and ``Memory`` knows the passwords
that were right.  Passwords are octets; a password that comes as text is encoded as UTF-8.  Knows nothing of users.
"""

import os
import re
from binascii import Error, a2b_base64, b2a_base64
from collections import OrderedDict
from functools import lru_cache

SHA256 = "rabbit_password_hashing_sha256"
# Each name that definitions use, and the hash that it means.  RabbitMQ wrote md5 before 3.6.
ALGORITHMS = {
    SHA256: "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
    "lavinmq_bcrypt": "bcrypt",
}
MD5, SHA512, BCRYPT = "rabbit_password_hashing_md5", "rabbit_password_hashing_sha512", "lavinmq_bcrypt"
NEW = BCRYPT
BCRYPT_COST = 10  # of new hashes: 2^10 rounds
BCRYPT_COST_MAX = 14  # of hashes that come from elsewhere: some 0.8 s
BCRYPT_OCTETS_MAX = 72  # of a password
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_PASSWORDS_REMEMBERED = 4096
_DIGEST_OCTETS = {"sha256": 32, "sha512": 64, "md5": 16}
SALT_OCTETS = 4
HASHES_REMEMBERED = 256  # decoded


def hash_new(password: str | bytes) -> tuple[str, str]:
    """The hash of a new password, and its algorithm.  Takes some 50 ms."""
    octets = _octets(password)
    if len(octets) > BCRYPT_OCTETS_MAX or b"\0" in octets:
        return hash_password(octets, SHA512), SHA512  # bcrypt cannot take these.
    import bcrypt

    return bcrypt.hashpw(octets, bcrypt.gensalt(BCRYPT_COST)).decode(), BCRYPT


def is_slow(algorithm: str) -> bool:
    """Whether it takes long to check a hash of this algorithm."""
    return algorithm == BCRYPT


def verify_nothing(password: str | bytes) -> None:
    """Take the time that a check takes."""
    verify(password, "$2b$10$" + 53 * ".", BCRYPT)


def hash_password(password: str | bytes, algorithm: str = SHA256) -> str:
    """The hash of ``password`` with a new salt.  ``algorithm`` is one of ``ALGORITHMS``."""
    salt = os.urandom(SALT_OCTETS)
    return b2a_base64(salt + _digest(salt, password, algorithm), newline=False).decode()


def verify(password: str | bytes, password_hash: str, algorithm: str = SHA256) -> bool:
    """Whether ``password`` has this hash.  False for an empty password or an empty hash (RabbitMQ)."""
    if not password or not password_hash:
        return False
    if algorithm == BCRYPT:
        return _verify_bcrypt(_octets(password), password_hash)
    octets = _decoded(password_hash, algorithm)
    if not octets:
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
    if algorithm == BCRYPT:
        found = _BCRYPT.fullmatch(password_hash)
        return found is not None and 4 <= int(found.group(1)) <= BCRYPT_COST_MAX
    try:
        octets = a2b_base64(password_hash, strict_mode=True)
    except (Error, ValueError):
        return False
    return len(octets) == SALT_OCTETS + _DIGEST_OCTETS[ALGORITHMS[algorithm]]


def _digest(salt: bytes, password: str | bytes, algorithm: str) -> bytes:
    import hashlib  # A start that finds users.json need not hash, and saves this import.

    return hashlib.new(ALGORITHMS[algorithm], salt + _octets(password), usedforsecurity=False).digest()


def _octets(password: str | bytes) -> bytes:
    return password.encode("utf-8", "surrogateescape") if isinstance(password, str) else bytes(password)


def _verify_bcrypt(password: bytes, password_hash: str) -> bool:
    if len(password) > BCRYPT_OCTETS_MAX or b"\0" in password or not is_hash(password_hash, BCRYPT):
        return False
    import bcrypt

    return bcrypt.checkpw(password, password_hash.encode())


class Memory:
    """Passwords that were right, so that only the first login of a user takes long.

    It holds no password: a keyed hash of each, whose key no other process knows.  Any thread may use it.
    """

    __slots__ = ("_key", "_known")

    def __init__(self) -> None:
        self._key = b""
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def knows(self, password_hash: str, password: str | bytes) -> bool:
        """Whether this password was right for this hash."""
        return bool(self._known) and self._sign(password_hash, password) in self._known

    def note(self, password_hash: str, password: str | bytes) -> None:
        """The password is right for this hash."""
        self._known[self._sign(password_hash, password)] = None
        if len(self._known) > _PASSWORDS_REMEMBERED:
            self._known.popitem(last=False)

    def _sign(self, password_hash: str, password: str | bytes) -> bytes:
        import hmac

        self._key = self._key or os.urandom(32)
        return hmac.digest(self._key, password_hash.encode() + b"\0" + _octets(password), "sha256")
