"""Tokens: forged, expired, meant for others; keys that change, and servers of keys that fail."""

import http.server
import json
import threading
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.auth.tokens import Issuer

from brokerd.auth import tokens
from brokerd.auth.tokens import Tokens
from brokerd.errors import LoginRefused
from brokerd.settings import OAuth2


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path / "issuer")


def settings(jwks, **more):
    return OAuth2(**{"jwks": str(jwks), "resource_server_id": "rabbitmq", "issuer": "", "preferred_username_claims": (),
                     "scope_prefix": "rabbitmq.", "additional_scopes_keys": (), "verify_aud": True, "ca_cert": "",
                     **more})


class Clock:
    def __init__(self):
        self.passed = 0.0

    def tokens(self):
        return Tokens(lambda: time.time() + self.passed, lambda: 1000.0 + self.passed)


def verify(source, token, **more):
    return Clock().tokens().verify(token, settings(source.file, **more))


def test_a_right_token_says_who_it_is_and_what_it_allows(issuer):
    token = verify(issuer, issuer.token("read:%2F/a", "tag:monitoring"))
    assert token.user == "ann"
    assert token.scopes.tags == ("monitoring",)
    assert token.scopes.check("/", "read", "a")


def test_keys_of_curves_sign_too(issuer):
    issuer.add_curve("curve")
    assert verify(issuer, issuer.token(kid="curve")).user == "ann"


@pytest.mark.parametrize(("more", "reason"), [
    ({"seconds": -1}, "has expired"),
    ({"exp": None}, 'missing the "exp" claim'),
    ({"exp": "tomorrow"}, "exp"),
    ({"exp": True}, "exp"),
    ({"exp": 1e300}, "exp"),
    ({"aud": "other"}, "[Aa]udience"),
    ({"aud": None}, "aud"),
    ({"aud": []}, "[Aa]ud"),
    ({"nbf": 1 << 36}, "time has not come"),
    ({"sub": None}, "no claim that is a user name"),
    ({"sub": "a\nb"}, "not 1 to 255 octets"),
    ({"sub": "a" * 300}, "not 1 to 255 octets"),
])
def test_claims_that_are_wrong_are_refused(issuer, more, reason):
    with pytest.raises(LoginRefused, match=reason):
        verify(issuer, issuer.token(**more))


def test_the_issuer_is_compared_if_one_is_named(issuer):
    assert verify(issuer, issuer.token(iss="https://me"), issuer="https://me").user == "ann"
    for iss in ("https://other", None):
        with pytest.raises(LoginRefused, match="iss"):
            verify(issuer, issuer.token(iss=iss), issuer="https://me")


def test_no_signature_is_no_token(issuer):
    unsigned = jwt.encode(issuer.claims(), "", "none", {"kid": "one"})
    with pytest.raises(LoginRefused, match="algorithm"):
        verify(issuer, unsigned)
    right = issuer.token()
    for forged in (right.rpartition(".")[0] + ".", right[:-6] + "AAAAAA", unsigned.rpartition(".")[0] + ".AAAA"):
        with pytest.raises(LoginRefused):
            verify(issuer, forged)


@pytest.mark.filterwarnings("ignore")
def test_a_public_key_is_no_shared_secret(issuer):
    """Key confusion: the public key as the secret of an HMAC."""
    import base64
    import hashlib
    import hmac

    def part(octets):
        return base64.urlsafe_b64encode(octets).rstrip(b"=")

    for kid, more in (("one", ()), ("secret", ({"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},))):
        issuer.write(*more)
        secret = b"secret" if more else issuer.public_octets()
        head = part(json.dumps({"alg": "HS256", "kid": kid}).encode())
        head += b"." + part(json.dumps(issuer.claims()).encode())
        forged = head + b"." + part(hmac.digest(secret, head, hashlib.sha256))
        with pytest.raises(LoginRefused, match="algorithm"):
            verify(issuer, forged.decode())


def test_another_key_under_a_known_name_is_refused(issuer):
    stranger = rsa.generate_private_key(65537, 2048)
    with pytest.raises(LoginRefused, match="[Ss]ignature"):
        verify(issuer, jwt.encode(issuer.claims(), stranger, "RS256", {"kid": "one"}))
    for header in ({"kid": "two"}, {"kid": ""}):
        with pytest.raises(LoginRefused, match="no key"):
            verify(issuer, jwt.encode(issuer.claims(), stranger, "RS256", header))
    with pytest.raises(LoginRefused):  # A header may bring a key along: it must not count.
        own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(stranger.public_key()))
        verify(issuer, jwt.encode(issuer.claims(), stranger, "RS256", {"kid": "one", "jwk": own, "jku": "http://x"}))


@pytest.mark.parametrize("text", ["", "ey", "ey..", "ey.ey.ey", "eyJhbGciOiJSUzI1NiJ9.e30.", "ey\u00e9.a.b", "." * 500,
                                  "ey" + "a" * (1 << 17)])
def test_what_is_no_token_is_refused(issuer, text):
    with pytest.raises(LoginRefused):
        verify(issuer, text)


def test_the_user_name_comes_from_the_first_claim_that_is_there(issuer):
    token = issuer.token(name="bob", client_id="app")
    assert verify(issuer, token, preferred_username_claims=("missing", "name")).user == "bob"
    assert verify(issuer, token).user == "ann"
    assert verify(issuer, issuer.token(sub=None, client_id="app")).user == "app"


@pytest.mark.parametrize("value", [
    "rabbitmq.read:a/b", ["rabbitmq.read:a/b", 7], {"rabbitmq": ["rabbitmq.read:a/b"], "other": ["rabbitmq.read:x/y"]},
])
def test_scopes_come_from_other_claims_too(issuer, value):
    token = verify(issuer, issuer.token(roles=value), additional_scopes_keys=("roles",))
    assert token.scopes.check("a", "read", "b")
    assert not token.scopes.has_access("x")


def test_scopes_of_other_programs_allow_nothing(issuer):
    token = verify(issuer, issuer.token(scope="read:a/b other.read:a/b rabbitmqread:a/b"))
    assert not token.scopes.has_access("a")


def test_a_key_that_is_new_is_fetched_and_one_that_was_taken_back_counts_no_more(issuer):
    clock = Clock()
    known, from_file = clock.tokens(), settings(issuer.file)
    known.verify(issuer.token(), from_file)
    old = issuer.token()
    issuer.add_curve("two")
    with pytest.raises(LoginRefused, match="no key"):
        known.verify(issuer.token(kid="two"), from_file)  # The keys were asked for just now.
    clock.passed += tokens.RETRY_SECONDS
    assert known.verify(issuer.token(kid="two"), from_file).user == "ann"
    del issuer.keys["one"]
    issuer.write()
    clock.passed += tokens.FRESH_SECONDS
    with pytest.raises(LoginRefused, match="no key"):
        known.verify(old, from_file)


class Keys(http.server.BaseHTTPRequestHandler):
    """A server of keys whose answer a test chooses."""

    answer: bytes | None = b""
    asked = 0

    def do_GET(self):
        type(self).asked += 1
        if self.answer is None:
            self.send_response(302)
            self.send_header("location", "/elsewhere")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Keys,), {})
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_address[1]}/keys"
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_keys_that_are_known_stay_while_their_server_fails(issuer, server):
    clock, handler = Clock(), server.RequestHandlerClass
    known, by_http = clock.tokens(), settings(server.url)
    handler.answer = issuer.file.read_bytes()
    assert known.verify(issuer.token(seconds=1 << 20), by_http).user == "ann"
    for answer in (b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [{}, 1, {"kty": "RSA", "kid": "one"}]', None):
        handler.answer = answer
        clock.passed += tokens.FRESH_SECONDS
        assert known.verify(issuer.token(seconds=1 << 20), by_http).user == "ann"


def test_strangers_do_not_make_the_broker_ask_again_and_again(issuer, server):
    handler = server.RequestHandlerClass
    handler.answer = issuer.file.read_bytes()
    known = Clock().tokens()
    token = jwt.encode(issuer.claims(), issuer.keys["one"][0], "RS256", {"kid": "x"})
    for _ in range(20):
        with pytest.raises(LoginRefused):
            known.verify(token, settings(server.url))
    assert handler.asked == 1


@pytest.mark.parametrize("url", ["http://keys.example/jwks", "http://127.0.0.1.evil.example/jwks"])
def test_keys_never_come_by_plain_http_from_elsewhere(issuer, url):
    with pytest.raises(LoginRefused, match="no key"):
        Clock().tokens().verify(issuer.token(), settings(url))
