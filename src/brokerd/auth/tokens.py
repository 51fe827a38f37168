"""JSON Web Tokens in place of passwords (OAuth 2): who a token says its bearer is, what it allows, when it ends.

A token counts if a key of the issuer's key set has signed it (RS256 and its like; never a shared secret), its ``aud``
names this broker, its time has come and has not passed, and one of its claims is a user name.  Scopes: ``scopes``.

``Tokens.verify`` may fetch keys and takes milliseconds at least, so a thread of its own calls it: a slow key
server holds up only clients that log in by token.  Keys are fetched again when they are old, and when a token names an
unknown key, but not more often than every ``RETRY_SECONDS``; if that fails, the known keys stay.
Knows nothing of connections.
"""

from collections.abc import Callable
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.auth import fetching
from brokerd.auth.scopes import Scopes
from brokerd.auth.users import checked_name
from brokerd.errors import LoginRefused, PreconditionFailed, in_words
from brokerd.named_file import read_regular
from brokerd.settings import OAuth2

if TYPE_CHECKING:
    from jwt import PyJWK

log = getLogger("brokerd")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEY_TYPES = ("RSA", "EC", "OKP")  # never a shared secret: who knows the set of keys could sign
TOKEN_OCTETS_MAX = 64 << 10
KEYS_OCTETS_MAX = 1 << 20
KEYS_MAX = 100
FETCH_SECONDS = 5.0
FRESH_SECONDS = 300.0
RETRY_SECONDS = 10.0
LEEWAY_SECONDS = 5  # for clocks that differ, at the beginning of a token's time
LATEST_SECONDS = 1 << 40


class Token(NamedTuple):
    """The claims of a token that count."""

    user: str
    scopes: Scopes
    expires: float  # seconds since the epoch


class Tokens:
    """Checks tokens.  ``settings()`` are those of the moment, ``now()`` seconds since the epoch, ``monotonic()``
    seconds that never go back.  One thread at a time asks."""

    __slots__ = ("_failed", "_fetched", "_keys", "_monotonic", "_now", "_source")

    def __init__(self, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._now, self._monotonic = now, monotonic
        self._keys: dict[str, PyJWK] = {}
        self._source = ""  # where the keys come from
        self._fetched = float("-inf")  # when the keys came
        self._failed = float("-inf")  # when they were last asked for

    def verify(self, text: str, settings: OAuth2) -> Token:
        """The claims of the token.  Raises LoginRefused with the reason for the log, which has no part of the token."""
        if len(text) > TOKEN_OCTETS_MAX:
            raise LoginRefused(f"the token has more than {TOKEN_OCTETS_MAX} octets")
        try:
            import jwt
        except ImportError:
            raise LoginRefused("tokens need PyJWT: pip install 'brokerd[oauth2]'") from None
        try:
            header = jwt.get_unverified_header(text)
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS:
                raise LoginRefused("the token's algorithm is not one of those that are allowed")
            key = self._key(header.get("kid"), settings)
            if key.algorithm_name and key.algorithm_name != algorithm:
                raise LoginRefused("the token's algorithm is not that of its key")
            claims = jwt.decode(
                text, key, [algorithm],
                audience=settings.resource_server_id if settings.verify_aud else None,
                issuer=settings.issuer or None,
                options={"verify_aud": settings.verify_aud, "require": ["exp"], "verify_exp": False,
                         "verify_nbf": False, "verify_iat": False, "verify_iss": bool(settings.issuer)},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            raise LoginRefused(f"the token is refused: {error}") from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise LoginRefused(f"the token is no token: {type(error).__name__}") from None
        return self._token(claims, settings)

    def _token(self, claims: dict[str, Any], settings: OAuth2) -> Token:
        now = self._now()
        expires = _seconds(claims, "exp")
        if expires is None or expires <= now:
            raise LoginRefused("the token has expired")
        begins = _seconds(claims, "nbf")
        if begins is not None and begins > now + LEEWAY_SECONDS:
            raise LoginRefused("the token's time has not come")
        for claim in (*settings.preferred_username_claims, "sub", "client_id"):
            name = claims.get(claim)
            if name is not None:
                try:
                    return Token(checked_name(name), Scopes(_scopes(claims, settings)), expires)
                except PreconditionFailed as error:
                    raise LoginRefused(f"claim {claim} of the token: {error}") from None
        raise LoginRefused("the token has no claim that is a user name")

    # --- keys

    def _key(self, kid: Any, settings: OAuth2) -> "PyJWK":
        self._refresh(settings, wanted=kid)
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            raise LoginRefused("no key of the key set has signed the token")
        return key

    def _refresh(self, settings: OAuth2, *, wanted: Any) -> None:
        now = self._monotonic()
        if settings.jwks != self._source:  # A reload names other keys: the former ones must not count any more.
            self._keys, self._source = {}, settings.jwks
            self._fetched = self._failed = float("-inf")
        is_known = wanted in self._keys if isinstance(wanted, str) else bool(self._keys)
        if (is_known and now - self._fetched < FRESH_SECONDS) or now - self._failed < RETRY_SECONDS:
            return
        self._failed = now
        try:
            self._keys = read_keys(fetch(settings))
        except (OSError, ValueError) as error:
            log.warning("oauth2_jwks %s: %s: %d known keys stay", settings.jwks, in_words(error),
                        len(self._keys))  # fmt: skip
            return
        self._fetched = now


def read_keys(octets: bytes) -> "dict[str, PyJWK]":
    """The keys of a set that may sign tokens, by their names.  Raises ValueError."""
    import json

    from jwt import PyJWK, PyJWTError

    try:
        rows = json.loads(octets)["keys"]
    except (KeyError, TypeError, RecursionError):
        raise ValueError("no JSON Web Key Set") from None
    if not isinstance(rows, list) or len(rows) > KEYS_MAX:
        raise ValueError(f"no list of at most {KEYS_MAX} keys")
    keys: dict[str, PyJWK] = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("kty") not in KEY_TYPES or row.get("use", "sig") != "sig":
            continue
        try:
            keys[str(row.get("kid", ""))] = PyJWK({name: value for name, value in row.items() if name != "d"})
        except (PyJWTError, ValueError, TypeError):
            continue  # A kind of key that this broker does not know is another program's.
    return keys


def fetch(settings: OAuth2) -> bytes:
    """The key set, from a file or by HTTPS; by HTTP from this machine alone.  Raises OSError, ValueError."""
    from urllib.parse import urlsplit

    address = urlsplit(settings.jwks)
    if address.scheme not in ("http", "https"):
        return read_regular(settings.jwks, KEYS_OCTETS_MAX)
    if address.scheme == "http" and address.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError("keys that come by plain HTTP could be anybody's: https is needed")
    return fetching.fetch(
        settings.jwks, seconds=FETCH_SECONDS, octets_most=KEYS_OCTETS_MAX, ca_cert=settings.ca_cert
    )[1]


# --- claims


def _seconds(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LATEST_SECONDS:
        raise LoginRefused(f"claim {name} of the token is no time")
    return float(value)


def _scopes(claims: dict[str, Any], settings: OAuth2) -> list[str]:
    """The token's scopes that are meant for this broker, without their prefix."""
    words = _words(claims.get("scope"))
    for key in settings.additional_scopes_keys:
        value = claims.get(key)
        words += _words(value.get(settings.resource_server_id) if isinstance(value, dict) else value)
    prefix = settings.scope_prefix
    return [word.removeprefix(prefix) for word in words if word.startswith(prefix)]


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
