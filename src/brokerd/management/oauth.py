"""Logs pages in by an OpenID provider (OAuth 2, the code flow with PKCE), with the options of tokens: ``oauth2_*``.

    GET /oauth/authorize    sends the browser to the provider
    GET /oauth/callback     the provider sends it back with a code, which is exchanged for a token; the token is
                            checked as every other one, and opens the session of a page
    GET /api/auth           says whether this is possible, as RabbitMQ does

A signed cookie of five minutes holds the value that must come back, and the secret of PKCE: a code that another browser
asked for, or another site has made up, opens no session.  The provider's addresses come from its discovery document.
Threads ask the provider, for few clients at a time; a call back without that cookie causes no request to it.
"""

import asyncio
import hashlib
import hmac
import json
import os
import time
from base64 import urlsafe_b64encode
from logging import getLogger
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from starlette.responses import Response

from brokerd.auth import fetching
from brokerd.errors import in_words
from brokerd.management.answers import Denied, as_json
from brokerd.management.app import Call, Route
from brokerd.management.logins import SESSION_SECONDS, cookie_in, signed, unsigned
from brokerd.management.v2 import cookie_header

log = getLogger("brokerd.management")

COOKIE = "brokerd_oauth"
LOGIN_SECONDS = 300  # that a login at the provider may take
DISCOVERY = "/.well-known/openid-configuration"
FETCH_SECONDS = 5.0
ANSWER_OCTETS_MAX = 256 << 10
KNOWN_SECONDS = 300.0  # that the provider's addresses are remembered
ASKING_MAX = 8  # requests to the provider at a time
PARAMETER_CHARACTERS_MAX = 8192
# Why a login has failed: a word for the page, which has the sentence.
NO_PROVIDER, NOT_BEGUN, REFUSED, NO_TOKEN, NO_TAG = "provider", "state", "refused", "token", "tag"


class Provider(NamedTuple):
    """The addresses of the provider that the code flow needs."""

    authorize: str
    token: str


class Failed(Exception):
    """The login fails.  ``word``: for the page; the text: for the log."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(text)
        self.word = word


_known: dict[tuple[str, str], tuple[float, Provider]] = {}
_asking = asyncio.Semaphore(ASKING_MAX)


def routes() -> list[tuple[str, str, Route]]:
    """The routes of this module."""
    return [
        ("GET", "/api/auth", Route(_auth, None)),
        ("GET", "/oauth/authorize", Route(_authorize, None)),
        ("GET", "/oauth/callback", Route(_callback, None)),
    ]


def is_on(settings: dict[str, Any]) -> bool:
    """Whether pages may log in by a provider."""
    oauth = settings["oauth"]
    return bool(oauth["client_id"] and oauth["issuer"] and oauth["jwks"])


async def _auth(call: Call) -> Response:
    oauth = call.services.settings["oauth"]
    if not is_on(call.services.settings):
        return as_json({"oauth_enabled": False})
    return as_json({"oauth_enabled": True, "oauth_client_id": oauth["client_id"],
                    "oauth_provider_url": oauth["issuer"]})  # fmt: skip


async def _authorize(call: Call) -> Response:
    settings = call.services.settings
    if not is_on(settings):
        return _to_page(NO_PROVIDER)
    try:
        provider = await _provider(settings["oauth"])
    except Failed as error:
        log.warning("login by the OpenID provider: %s", error)
        return _to_page(error.word)
    state, secret = os.urandom(16).hex(), urlsafe_b64encode(os.urandom(48)).decode()
    challenge = urlsafe_b64encode(hashlib.sha256(secret.encode()).digest()).rstrip(b"=").decode()
    query = urlencode({
        "response_type": "code", "client_id": settings["oauth"]["client_id"], "redirect_uri": _back(call),
        "scope": settings["oauth"]["scopes"], "state": state, "code_challenge": challenge,
        "code_challenge_method": "S256",
    })  # fmt: skip
    held = signed(_key(settings), {"s": state, "v": secret, "e": int(time.time()) + LOGIN_SECONDS})
    joint = "&" if urlsplit(provider.authorize).query else "?"
    return _redirect(f"{provider.authorize}{joint}{query}", _cookie(call, held, LOGIN_SECONDS))


async def _callback(call: Call) -> Response:
    try:
        token = await _token(call)
        try:
            call.login = await call.services.logins.check_token(token, call.address)
        except Denied:
            raise Failed(NO_TOKEN, "the broker refuses the provider's token: see the line before") from None
        if not call.has_tag("management"):
            raise Failed(NO_TAG, f"the token of user '{call.login.user}' has no scope that gives the tag management")
    except Failed as error:
        log.warning("login by the OpenID provider from %s: %s", call.address, error)
        response = _to_page(error.word)
        response.headers["set-cookie"] = _cookie(call, "", 0)
        return response
    cookie, _ = call.services.logins.open(call.login, "")
    response = _redirect("/", cookie_header(call, cookie, SESSION_SECONDS)["set-cookie"])
    response.headers.append("set-cookie", _cookie(call, "", 0))
    return response


async def _token(call: Call) -> str:
    """The token for the code that the provider has sent.  Raises Failed."""
    settings, query = call.services.settings, call.query
    held = unsigned(_key(settings), cookie_in(call.headers.get("cookie", ""), COOKIE))
    state = query.get("state", "").encode("utf-8", "replace")
    if not is_on(settings) or held is None or not hmac.compare_digest(held["s"].encode(), state):
        raise Failed(NOT_BEGUN, "no login was begun here in the last minutes")
    if "error" in query:
        raise Failed(REFUSED, f"the provider answers {query['error']!r:.100}")
    code = query.get("code", "")
    if not code or len(code) > PARAMETER_CHARACTERS_MAX:
        raise Failed(REFUSED, "the provider sends no code")
    provider = await _provider(settings["oauth"])
    form = urlencode({
        "grant_type": "authorization_code", "code": code, "redirect_uri": _back(call),
        "client_id": settings["oauth"]["client_id"], "code_verifier": held["v"],
    })  # fmt: skip
    answer = await _fetch(provider.token, settings["oauth"], form.encode())
    token = answer.get("access_token")
    if not isinstance(token, str):
        raise Failed(NO_TOKEN, "the provider's answer has no access_token")
    return token


async def _provider(oauth: dict[str, Any]) -> Provider:
    """Where the provider is asked.  Raises Failed."""
    key, now = (oauth["issuer"], oauth["ca_cert"]), time.monotonic()
    known = _known.get(key)
    if known is not None and now - known[0] < KNOWN_SECONDS:
        return known[1]
    found = await _fetch(oauth["issuer"].rstrip("/") + DISCOVERY, oauth)
    addresses = [found.get(name) for name in ("authorization_endpoint", "token_endpoint")]
    if found.get("issuer") != oauth["issuer"] or not all(isinstance(each, str) for each in addresses):
        raise Failed(NO_PROVIDER, f"{oauth['issuer']} does not describe itself as an OpenID provider")
    provider = Provider(*map(str, addresses))
    for each in provider:
        _check_safe(each)
    _known.clear()
    _known[key] = (now, provider)
    return provider


async def _fetch(address: str, oauth: dict[str, Any], form: bytes | None = None) -> dict[str, Any]:
    """The JSON object at that address.  Raises Failed."""
    _check_safe(address)
    if _asking.locked():
        raise Failed(NO_PROVIDER, f"{ASKING_MAX} requests to the provider are under way")
    try:
        async with _asking:
            _, octets = await asyncio.to_thread(
                fetching.fetch, address, seconds=FETCH_SECONDS, octets_most=ANSWER_OCTETS_MAX,
                ca_cert=oauth["ca_cert"], form=form,
            )  # fmt: skip
        found = json.loads(octets)
    except (OSError, ValueError, RecursionError) as error:
        raise Failed(NO_PROVIDER, f"{address}: {in_words(error)}") from None
    if not isinstance(found, dict):
        raise Failed(NO_PROVIDER, f"{address}: no JSON object")
    return found


def _check_safe(address: str) -> None:
    """Check that octets to and from there cannot be read on the way.  Raises Failed."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        raise Failed(NO_PROVIDER, f"{address!r:.200} is no address") from None
    if parts.scheme != "https" and not (parts.scheme == "http" and host in ("127.0.0.1", "::1", "localhost")):
        raise Failed(NO_PROVIDER, f"{address!r:.200}: https is needed")


def _key(settings: dict[str, Any]) -> bytes:
    return hmac.new(bytes.fromhex(settings["key"]), b"oauth", "sha256").digest()


def _back(call: Call) -> str:
    """The address to which the provider sends the browser back, as the browser sees it."""
    base = call.services.settings["oauth"]["pages_url"]
    if not base:
        base = f"{'https' if call.is_secret else 'http'}://{call.headers.get('host', '')}"
    return f"{base.rstrip('/')}/oauth/callback"


def _cookie(call: Call, value: str, seconds: int) -> str:
    """SameSite=Lax: the browser comes with it from the provider's page."""
    secure = "; Secure" if call.is_secret else ""
    return f"{COOKIE}={value}; Max-Age={seconds}; Path=/oauth; HttpOnly; SameSite=Lax{secure}"


def _redirect(address: str, cookie: str = "") -> Response:
    headers = {"location": address, "cache-control": "no-store"}
    if cookie:
        headers["set-cookie"] = cookie
    return Response(b"", 302, headers)


def _to_page(word: str) -> Response:
    return _redirect(f"/?login={word}")
