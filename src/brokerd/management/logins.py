"""Who asks: HTTP Basic, Bearer (a token of OAuth 2), or the signed cookie that pages get from ``/api/v2/session``.

The broker checks passwords (``user authenticate``): there they are remembered, and there wrong ones of one user from
one address are slowed down, together with those of AMQP.  A right password is remembered here for a second, so that a
page which asks for many things at once costs one check.

A cookie holds the user's name, when it ends, and a token that a page sends in the header X-CSRF-Token with all that
changes something; HMAC signs it, with a key that the broker makes at its start.  It also holds a mark of the user's
password hash: with another password the session ends, and a later user of that name does not inherit it.  If the user's
rights come from a token or a web server, it holds the key by which the broker knows them instead.  A request that
changes something must also not come from another site's page: Origin is compared with Host.
"""

import asyncio
import hashlib
import hmac
import json
import os
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from brokerd.management.answers import Denied, Fault
from brokerd.management.control import Control, Refused

COOKIE = "brokerd_session"
SESSION_SECONDS = 8 * 3600
REMEMBERED_SECONDS = 1.0
REMEMBERED_MAX = 1000
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE_CHARACTERS_MAX = 2048
CHECKS_MAX = 8  # passwords that the broker checks for this process at a time


class Login(NamedTuple):
    """A user who has logged in."""

    user: str
    tags: tuple[str, ...]
    session: dict[str, Any] | None = None  # what the cookie holds; None: Basic or Bearer
    grant: str = ""  # by which the broker knows the user's rights; "": users.json has them
    expires: int | None = None  # seconds since the epoch: when the token ends


class Logins:
    """Checks who asks."""

    __slots__ = ("_checks", "_control", "_key", "_remembered", "_salt")

    def __init__(self, control: Control, key: bytes) -> None:
        self._control = control
        self._key = key
        self._salt = os.urandom(16)
        self._remembered: OrderedDict[bytes, tuple[float, Login]] = OrderedDict()
        self._checks = asyncio.Semaphore(CHECKS_MAX)

    async def who(self, method: str, headers: Any, address: str) -> Login:
        """Who sends a request with these headers.  Raises Denied, Fault."""
        authorization = headers.get("authorization")
        cookie = None if authorization else self._session_of(headers)
        if method not in SAFE_METHODS:
            check_origin(headers)
        if cookie is not None:
            if method not in SAFE_METHODS and not _same(headers.get("x-csrf-token", ""), cookie["c"]):
                raise Fault(403, "the header X-CSRF-Token is missing or wrong")
            return await self._known(cookie)
        if not authorization:
            raise Denied
        kind, _, text = authorization.partition(" ")
        if kind.lower() == "bearer":
            return await self.check_token(text.strip(), address)
        if kind.lower() != "basic":
            raise Denied("only Basic and Bearer are known")
        try:
            octets = b64decode(text.strip(), validate=True)
        except ValueError:
            raise Denied("the header Authorization is not base64") from None
        name, colon, password = octets.decode("utf-8", "surrogateescape").partition(":")
        if not colon:
            raise Denied("the header Authorization holds no password")
        return await self.check(name, password, address)

    async def check(self, name: str, password: str, address: str) -> Login:
        """The user of this name, if the password is right.  Raises Denied, Unavailable."""
        return await self._once(self._authenticate, name, password, address)

    async def check_token(self, token: str, address: str) -> Login:
        """The user of the token, if it counts.  Raises Denied, Unavailable."""
        return await self._once(self._authenticate_token, token, address)

    async def _once(self, check: Callable[..., Awaitable[Login]], *proof: str) -> Login:
        """The answer of ``check(*proof)``, which may be a second old."""
        text = "\0".join((check.__name__, *proof)).encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(text, key=self._salt, digest_size=16).digest()
        now = time.monotonic()
        known = self._remembered.get(digest)
        if known is not None and now - known[0] < REMEMBERED_SECONDS:
            return known[1]
        login = await check(*proof)
        self._remembered[digest] = (now, login)
        self._remembered.move_to_end(digest)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return login

    async def _authenticate(self, name: str, password: str, address: str) -> Login:
        """As ``check``, but nothing is remembered."""
        return await self._ask("user authenticate", user=name, password=password, address=address)

    async def _authenticate_token(self, token: str, address: str) -> Login:
        return await self._ask("user authenticate_token", token=token, address=address)

    async def _ask(self, verb: str, **fields: str) -> Login:
        try:
            async with self._checks:
                user = await self._control.ask(verb, fields)
        except Refused as error:
            if error.code >= 500:
                raise
            raise Denied("Login failed") from None
        return Login(user["name"], tuple(user["tags"]), None, user["grant"], user["expires"])

    def forget(self) -> None:
        """Something about users changes: ask the broker again."""
        self._remembered.clear()

    # --- sessions

    async def log_in(self, name: str, password: str, address: str) -> tuple[Login, str]:
        """The user of this name, if the password is right, and the mark for a session.  Raises Denied, Unavailable."""
        try:
            # Before the check: if the password changes between the two, the session does not count.
            mark = self._mark(await self._control.ask("user show", {"user": name}))
        except Refused:
            mark = ""
        return await self._authenticate(name, password, address), mark

    def open(self, login: Login, mark: str) -> tuple[str, dict[str, Any]]:
        """A new session's cookie, and its contents."""
        end = int(time.time()) + SESSION_SECONDS
        session = {"u": login.user, "e": end if login.expires is None else min(end, login.expires),
                   "c": os.urandom(16).hex(), "m": mark}  # fmt: skip
        if login.grant:
            session.update(g=login.grant, t=login.tags)
        return signed(self._key, session), session

    async def _known(self, session: dict[str, Any]) -> Login:
        """The user of a session, with the tags of now.  Raises Denied if the user has gone."""
        if "g" in session:
            return Login(session["u"], tuple(session["t"]), session, session["g"])
        try:
            user = await self._control.ask("user show", {"user": session["u"]})
        except Refused:
            raise Denied("the session's user does not exist", ask=False) from None
        if not _same(session["m"], self._mark(user)):
            raise Denied("the session has ended: the user's password was changed", ask=False)
        return Login(user["name"], tuple(user["tags"]), session)

    def _session_of(self, headers: Any) -> dict[str, Any] | None:
        return unsigned(self._key, cookie_in(headers.get("cookie", ""), COOKIE))

    def _mark(self, user: dict[str, Any]) -> str:
        text = f"mark {user['name']}\0{user['hashing_algorithm']}\0{user['password_hash']}"
        return hmac.new(self._key, text.encode("utf-8", "surrogateescape"), "sha256").hexdigest()[:32]


def check_origin(headers: Any) -> None:
    """Raise Fault (403) if the request comes from the page of another site, as far as the browser tells."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Fault(403, "refused: the request comes from the page of another site")
    origin = headers.get("origin")
    if origin is None:
        return
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        host = ""
    if not host or host.lower() != headers.get("host", "").lower():
        raise Fault(403, "refused: Origin is another site than Host")


def cookie_in(header: str, wanted: str) -> str:
    """The value of that cookie in a header Cookie; "": it is not there."""
    for each in header.split(";"):
        name, _, value = each.strip().partition("=")
        if name == wanted:
            return value
    return ""


def signed(key: bytes, held: dict[str, Any]) -> str:
    """A cookie's value that holds this.  Its field "e" is the second (epoch) at which it ends."""
    body = urlsafe_b64encode(json.dumps(held).encode())
    return f"{body.decode()}.{_signature(key, body)}"


def unsigned(key: bytes, text: str) -> dict[str, Any] | None:
    """The contents of a cookie's value; None: this process has not signed it, or its time is over."""
    body, dot, signature = text.partition(".")
    if not dot or len(text) > COOKIE_CHARACTERS_MAX or not _same(signature, _signature(key, body.encode())):
        return None
    held: dict[str, Any] = json.loads(urlsafe_b64decode(body))
    return held if held["e"] > time.time() else None


def _signature(key: bytes, body: bytes) -> str:
    return hmac.new(key, b"session " + body, "sha256").hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
