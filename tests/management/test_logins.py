"""Who asks: Basic, sessions of pages, requests from other sites."""

import json
import re

import pytest
from tests.auth.tokens import Issuer
from tests.broker import Broker
from tests.management.http import Http, basic, reserve_http

SESSION = "/api/v2/session"


def log_in(http, user="guest", password="guest", **headers):
    return Http(http.port, None).ask("POST", SESSION, {"user": user, "password": password}, **headers)


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize("authorization", [
    "", "Basic", "Basic !", "Basic Z3Vlc3Q=", "Bearer x", basic("guest", "wrong"), basic("nobody", "guest"),
    basic("", ""), basic("guest", ""), basic("gu\0est", "guest"), basic("g" * 300, "x"),
])
def test_without_the_right_password_there_is_a_401(http, authorization):
    answer = Http(http.port, None).ask("GET", "/api/whoami", authorization=authorization)
    assert answer.status == 401
    assert answer.body["error"] == "not_authorized"
    assert answer.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'


def test_a_cookie_logs_a_page_in_and_out(http):
    answer = log_in(http)
    assert answer.status == 200
    assert answer.body["tags"] == ["administrator"]
    for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert word in answer.headers["set-cookie"]
    cookie = cookie_of(answer)
    page = Http(http.port, None)
    assert page.get("/api/whoami", cookie=cookie)["name"] == "guest"
    assert page.get(SESSION, cookie=cookie)["csrf_token"] == answer.body["csrf_token"]
    out = page.ask("DELETE", SESSION, cookie=cookie)
    assert out.status == 204
    assert "Max-Age=0" in out.headers["set-cookie"]


def test_a_wrong_password_of_a_page_asks_for_no_basic(http):
    answer = log_in(http, password="wrong")
    assert answer.status == 401
    assert "www-authenticate" not in answer.headers


def test_a_page_that_changes_something_shows_its_token(http):
    answer = log_in(http)
    cookie, token = cookie_of(answer), answer.body["csrf_token"]
    page = Http(http.port, None)
    assert page.ask("POST", "/api/v2/queue/list", {}, cookie=cookie).status == 403
    assert page.ask("POST", "/api/v2/queue/list", {}, cookie=cookie, x_csrf_token="x").status == 403
    assert page.ask("POST", "/api/v2/queue/list", {}, cookie=cookie, x_csrf_token=token).status == 200


@pytest.mark.parametrize("spoil", [
    lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"), lambda text: text + "0",
    lambda text: text.replace(".", ""),
    lambda text: re.sub("=(.)", lambda found: "=" + chr(ord(found.group(1)) ^ 1), text, count=1), lambda text: "x=y",
])
def test_a_cookie_that_was_changed_is_none(http, spoil):
    cookie = spoil(cookie_of(log_in(http)))
    assert Http(http.port, None).ask("GET", "/api/whoami", cookie=cookie).status == 401


@pytest.mark.parametrize(("headers", "status"), [
    ({"origin": "http://127.0.0.1:{port}"}, 200), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
    ({"origin": "http://[::"}, 403), ({"sec_fetch_site": "cross-site"}, 403), ({"sec_fetch_site": "same-site"}, 403),
    ({"sec_fetch_site": "same-origin"}, 200),
])
def test_another_sites_page_changes_nothing(http, headers, status):
    headers = {name: value.replace("{port}", str(http.port)) for name, value in headers.items()}
    assert http.ask("POST", "/api/v2/queue/list", {}, **headers).status == status
    assert log_in(http, **headers).status == status


@pytest.mark.parametrize("body", [[], {"user": "guest"}, {"user": 1, "password": "x"},
                                  {"user": "guest", "password": "guest", "more": 1}])
def test_a_login_that_is_none_is_a_400(http, body):
    assert Http(http.port, None).ask("POST", SESSION, body).status == 400


def test_no_other_site_may_read_answers(http):
    answer = http.ask("GET", "/api/overview", origin="http://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_wrong_passwords_are_slowed_down_by_user_and_address(make_broker):
    from tests.management.http import reserve_http

    port = reserve_http()
    broker = make_broker("--http-port", port).start()
    broker.wait_for_log(r"\(HTTP\)")
    http = Http(port)
    for number in range(300):   # A second forgives one: a slow machine needs more of them.
        assert http.as_user("guest", f"wrong{number}").ask("GET", "/api/whoami").status == 401
        if "too many failed logins of user 'guest' from 127.0.0.1" in broker.log_text():
            return
    pytest.fail("no number of wrong passwords is too large")


def test_what_a_cookie_holds_is_no_secret_and_no_password(http):
    from base64 import urlsafe_b64decode

    body = cookie_of(log_in(http)).partition("=")[2].partition(".")[0]
    assert set(json.loads(urlsafe_b64decode(body))) == {"u", "e", "c", "m"}


@pytest.mark.parametrize("change", ["password", "again"])
def test_a_session_ends_with_the_password_and_a_later_user_does_not_inherit_it(http, change):
    http.do("user", "add", user="ann", password="one", tags=["management"], replace=True)
    cookie = cookie_of(log_in(http, "ann", "one"))
    page = Http(http.port, None)
    assert page.ask("GET", "/api/whoami", cookie=cookie).status == 200
    http.do("user", "set_tags", user="ann", tags=["monitoring"])
    assert page.ask("GET", "/api/whoami", cookie=cookie).body["tags"] == ["monitoring"]
    if change == "password":
        http.do("user", "set_password", user="ann", password="two")
    else:
        http.do("user", "delete", user="ann")
        assert page.ask("GET", "/api/whoami", cookie=cookie).status == 401
        http.do("user", "add", user="ann", password="one", tags=["management"])
    assert page.ask("GET", "/api/whoami", cookie=cookie).status == 401
    http.do("user", "delete", user="ann")


# --- tokens

@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def with_tokens(tmp_path_factory, issuer):
    port = reserve_http()
    with Broker(tmp_path_factory.mktemp("tokens") / "data", "--http-port", port, "--oauth2-jwks", issuer.file,
                "--failed-logins-per-second", 0) as broker:
        broker.wait_for_log(r"\(HTTP\)")
        broker.http = Http(port, None)
        yield broker


def bearer(token):
    return {"authorization": f"Bearer {token}"}


EVERYTHING = ("configure:%2F/*", "write:%2F/*", "read:%2F/*")


@pytest.mark.parametrize("tag", ["management", "policymaker", "monitoring", "administrator"])
def test_a_token_logs_in_with_the_tags_and_the_rights_of_its_scopes(with_tokens, issuer, tag):
    http = with_tokens.http
    headers = bearer(issuer.token(f"tag:{tag}", "configure:%2F/mine*", "read:%2F/mine*"))
    assert http.get("/api/whoami", **headers) == {"name": "ann", "tags": [tag]}
    assert http.ask("PUT", "/api/queues/%2F/mine", {}, **headers).status in (201, 204)
    assert http.ask("PUT", "/api/queues/%2F/other", {}, **headers).status == 401
    assert http.ask("POST", "/api/v2/queue/declare", {"queue": "other"}, **headers).status == 403
    assert http.ask("GET", "/api/users", **headers).status == (200 if tag == "administrator" else 401)
    assert http.ask("GET", "/metrics", **headers).status == (200 if tag in ("monitoring", "administrator") else 401)
    assert [each["name"] for each in http.get("/api/queues", **headers)] == ["mine"]


def test_a_token_without_a_tag_may_log_in_but_do_nothing(with_tokens, issuer):
    answer = with_tokens.http.ask("GET", "/api/whoami", **bearer(issuer.token(*EVERYTHING)))
    assert answer.status in (200, 401)
    assert with_tokens.http.ask("GET", "/api/queues", **bearer(issuer.token(*EVERYTHING))).status == 401


def test_a_vhost_that_the_scopes_do_not_name_is_not_seen(with_tokens, issuer):
    headers = bearer(issuer.token("tag:management", "read:other/*"))
    assert with_tokens.http.get("/api/vhosts", **headers) == []
    assert with_tokens.http.get("/api/queues", **headers) == []


@pytest.mark.parametrize("spoil", ["expired", "audience", "unsigned", "no token", "empty"])
def test_a_token_that_does_not_count_is_a_401(with_tokens, issuer, spoil):
    token = {
        "expired": lambda: issuer.token("tag:administrator", seconds=-5),
        "audience": lambda: issuer.token("tag:administrator", aud="other"),
        "unsigned": lambda: issuer.token("tag:administrator").rpartition(".")[0] + ".",
        "no token": lambda: "guest", "empty": lambda: "",
    }[spoil]()
    answer = with_tokens.http.ask("GET", "/api/whoami", **bearer(token))
    assert answer.status == 401
    assert not token or token not in with_tokens.log_text()


def test_a_token_is_taken_as_the_password_of_basic_too_and_opens_the_session_of_a_page(with_tokens, issuer):
    token = issuer.token("tag:management", *EVERYTHING)
    http = with_tokens.http
    assert http.get("/api/whoami", authorization=basic("", token))["name"] == "ann"
    opened = http.ask("POST", SESSION, {"user": "x", "password": token})
    assert opened.status == 200
    assert opened.body["user"] == "ann"
    cookie = cookie_of(opened)
    assert http.get("/api/whoami", cookie=cookie) == {"name": "ann", "tags": ["management"]}
    assert http.ask("GET", "/api/queues", cookie=cookie).status == 200


def test_nobody_takes_over_a_grant_by_a_field_of_a_request(with_tokens, issuer):
    headers = bearer(issuer.token("tag:management", *EVERYTHING))
    answer = with_tokens.http.ask("POST", "/api/v2/queue/list", {"grant": "x"}, **headers)
    assert answer.status == 400


def test_passwords_count_beside_tokens(with_tokens):
    assert with_tokens.http.get("/api/whoami", authorization=basic("guest", "guest"))["name"] == "guest"
