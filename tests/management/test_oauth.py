"""The login of pages by an OpenID provider, without a browser."""

from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.auth.tokens import Issuer
from tests.broker import Broker
from tests.management.http import Http, reserve_http
from tests.management.openid import Provider

PROVIDERS_COOKIE, SESSION = "brokerd_oauth", "brokerd_session"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A broker whose pages log in at a provider."""
    provider, port = Provider(Issuer(tmp_path_factory.mktemp("keys"))), reserve_http()
    with Broker(tmp_path_factory.mktemp("oauth") / "data", "--http-port", port, *provider.flags()) as broker:
        broker.wait_for_log(r"\(HTTP\)")
        broker.http, broker.provider = Http(port, None), provider
        yield broker
    provider.close()


@pytest.fixture
def http(running):
    return running.http


@pytest.fixture
def provider(running):
    """The provider as it was at first."""
    provider = running.provider
    before = list(provider.scopes)
    yield provider
    provider.scopes = before


def cookies(answer):
    """What an answer sets, without what is taken away."""
    found = answer.headers.get("set-cookie", "")
    return {name: value for name in (PROVIDERS_COOKIE, SESSION) if f"{name}=" in found
            for value in [found.split(f"{name}=")[1].split(";")[0]] if value}


def begin(http):
    """The cookie of a login that has begun, and what the provider is asked for."""
    answer = http.ask("GET", "/oauth/authorize")
    assert answer.status == 302, answer
    query = {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
    return cookies(answer)[PROVIDERS_COOKIE], answer.headers["location"], query


def at_provider(provider, address):
    """The path with which the provider sends a browser back."""
    place = urlsplit(address)
    answer = Http(provider.server.server_port, None).ask("GET", f"{place.path}?{place.query}")
    back = urlsplit(answer.headers["location"])
    return f"{back.path}?{back.query}"


def come_back(http, path, cookie):
    return http.ask("GET", path, cookie=f"{PROVIDERS_COOKIE}={cookie}")


def test_the_login_page_is_told_of_the_provider(http, provider):
    assert http.get("/api/auth") == {"oauth_enabled": True, "oauth_client_id": "pages",
                                     "oauth_provider_url": provider.address}


def test_a_code_opens_a_session_with_the_rights_of_its_token(http, provider):
    provider.scopes = ["tag:monitoring", "read:*/*"]
    cookie, address, query = begin(http)
    assert query["redirect_uri"] == f"http://127.0.0.1:{http.port}/oauth/callback"
    answer = come_back(http, at_provider(provider, address), cookie)
    assert (answer.status, answer.headers["location"]) == (302, "/")
    session = {"cookie": f"{SESSION}={cookies(answer)[SESSION]}"}
    found = http.get("/api/v2/session", **session)
    assert (found["user"], found["tags"]) == ("olga", ["monitoring"])
    assert http.ask("GET", "/api/users", **session).status == 401
    assert http.ask("POST", "/api/v2/queue/list", {}, **session).status == 403  # It lacks X-CSRF-Token.
    assert http.ask("POST", "/api/v2/queue/list", {}, x_csrf_token=found["csrf_token"], **session).status == 200


def refused(running, path, cookie, word, text):
    """The page is told that word, the log has that text, and no session is opened."""
    begin_of_log = len(running.lines)
    answer = come_back(running.http, path, cookie)
    assert (answer.status, answer.headers["location"]) == (302, f"/?login={word}")
    assert SESSION not in answer.headers.get("set-cookie", "")
    running.wait_for_log(text, begin_of_log)


def test_a_code_counts_once(running, http, provider):
    cookie, address, _ = begin(http)
    path = at_provider(provider, address)
    assert come_back(http, path, cookie).headers["location"] == "/"
    refused(running, path, cookie, "provider", "status 400")


@pytest.mark.parametrize("spoil", ["none", "another", "state", "changed"])
def test_a_code_for_a_login_that_was_begun_elsewhere_opens_nothing(running, http, provider, spoil):
    cookie, address, query = begin(http)
    path = at_provider(provider, address)
    if spoil == "none":
        cookie = ""
    elif spoil == "another":
        cookie = begin(http)[0]
    elif spoil == "state":
        path = path.replace(query["state"], "0" * 32)
    else:
        cookie = cookie[:-1] + ("0" if cookie[-1] != "0" else "1")
    asked = len(provider.asked)
    refused(running, path, cookie, "state", "no login was begun here")
    assert provider.asked[asked:] == []  # A stranger makes the broker ask nobody.


def test_the_cookie_of_a_login_opens_no_session(http):
    cookie = begin(http)[0]
    assert http.ask("GET", "/api/v2/session", cookie=f"{SESSION}={cookie}").status == 401


def test_the_providers_refusal_is_told(running, http):
    cookie, _, query = begin(http)
    back = urlencode({"error": "access_denied", "state": query["state"]})
    refused(running, f"/oauth/callback?{back}", cookie, "refused", "access_denied")


def test_a_user_without_a_tag_sees_no_pages(running, http, provider):
    provider.scopes = ["read:*/*"]
    cookie, address, _ = begin(http)
    refused(running, at_provider(provider, address), cookie, "tag", "olga.* has no scope")


def test_a_token_of_another_issuer_is_refused(running, http, provider, tmp_path):
    cookie, address, _ = begin(http)
    path, right = at_provider(provider, address), provider.issuer
    provider.issuer = Issuer(tmp_path / "other")
    try:
        refused(running, path, cookie, "token", "refuses the provider's token")
    finally:
        provider.issuer = right


def test_without_the_options_there_is_no_such_login(shared):
    assert shared.http.get("/api/auth") == {"oauth_enabled": False}
    assert shared.http.ask("GET", "/oauth/authorize").headers["location"] == "/?login=provider"


@pytest.mark.parametrize("described", [
    {"issuer": "https://other.example"}, {"token_endpoint": None}, {"token_endpoint": "http://192.0.2.1/token"},
    {"authorization_endpoint": "javascript:alert(1)"},
])
def test_a_provider_that_describes_itself_wrongly_is_not_used(tmp_path, described):
    provider, port = Provider(Issuer(tmp_path / "keys")), reserve_http()
    provider.described = described
    try:
        with Broker(tmp_path / "data", "--http-port", port, *provider.flags()) as broker:
            broker.wait_for_log(r"\(HTTP\)")
            assert Http(port, None).ask("GET", "/oauth/authorize").headers["location"] == "/?login=provider"
            broker.wait_for_log("login by the OpenID provider: ")
    finally:
        provider.close()
