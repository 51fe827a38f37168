"""HTTPS and the unix socket of HTTP: who is let in, what a reload changes, clients who do not end their handshake."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl

import pytest
from tests.broker import SECONDS
from tests.management.http import Http, basic, reserve_http
from tests.server.certificates import Authority

from brokerd.management import doors

LISTENS = r"listening on 127\.0\.0\.1:(\d+) \(HTTPS\)"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("https") / "ours")


@pytest.fixture
def secret(make_broker, authority, tmp_path):
    """A broker with HTTPS alone, whose certificate lies in files that a test may replace."""
    for path, kind in zip(authority.sign("server", "/CN=localhost"), ("pem", "key"), strict=True):
        shutil.copy(path, tmp_path / f"server.{kind}")
    broker = make_broker("--cert", tmp_path / "server.pem", "--key", tmp_path / "server.key", "--amqps-port", 0,
                         "--https-port", reserve_http()).start()
    broker.https_port = int(re.search(LISTENS, broker.wait_for_log(LISTENS)).group(1))
    yield broker
    broker.stop()


def ask(port, context, method="GET", path="/api/whoami", body=None, **headers):
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=SECONDS)
    headers.setdefault("authorization", basic("guest", "guest"))
    try:
        connection.request(method, path, body, headers)
        got = connection.getresponse()
        return got.status, json.loads(got.read() or b"null"), dict(got.getheaders())
    finally:
        connection.close()


def serial(port, context):
    with socket.create_connection(("127.0.0.1", port), SECONDS) as sock:
        with context.wrap_socket(sock, server_hostname="localhost") as secured:
            return secured.getpeercert()["serialNumber"]


def test_https_answers_and_its_cookie_never_goes_over_plain_http(secret, authority):
    port, context = secret.https_port, authority.context()
    assert ask(port, context)[1]["name"] == "guest"
    log_in = json.dumps({"user": "guest", "password": "guest"})
    status, _, headers = ask(port, context, "POST", "/api/v2/session", log_in)
    assert status == 200
    assert "; Secure" in headers["set-cookie"]
    listeners = ask(port, context, path="/api/overview")[1]["listeners"]
    assert [each["port"] for each in listeners if each["protocol"] == "https"] == [port]
    assert not [each for each in listeners if each["protocol"] == "http"]


def test_the_cookie_of_plain_http_is_not_bound_to_https(http):
    answer = http.ask("POST", "/api/v2/session", {"user": "guest", "password": "guest"})
    assert "Secure" not in answer.headers["set-cookie"]


def test_the_check_of_expiration_fails_when_a_certificate_expires_within_the_time(secret, authority, tmp_path):
    checks = "/api/health/checks/certificate-expiration"
    context = authority.context()
    assert ask(secret.https_port, context, path=f"{checks}/1/days")[:2] == (200, {"status": "ok"})
    status, body, _ = ask(secret.https_port, context, path=f"{checks}/1/weeks")
    assert (status, body["status"], body["reason"]) == (503, "failed", "Certificates expiring")
    assert [each["name"] for each in body["expired"]] == [str(tmp_path / "server.pem")]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", body["expired"][0]["cert_expires_on"])
    for wrong in ("x/days", "1/fortnights", "-1/days", "1000000/days"):
        assert ask(secret.https_port, context, path=f"{checks}/{wrong}")[0] == 400
    for path, kind in zip(authority.sign("longer", "/CN=localhost", days=3000), ("pem", "key"), strict=True):
        shutil.copy(path, tmp_path / f"server.{kind}")
    begin = len(secret.lines)
    os.kill(secret.pid, signal.SIGHUP)
    secret.wait_for_log("reloaded", begin)
    assert ask(secret.https_port, context, path=f"{checks}/8/years")[0] == 200
    assert ask(secret.https_port, context, path=f"{checks}/9/years")[0] == 503


def test_a_name_has_its_certificate_over_https_too(make_broker, authority, tmp_path):
    files = authority.sign("other", "/CN=x", "DNS:other.example")
    (tmp_path / "other.pem").write_text("".join(file.read_text() for file in files))
    cert, key = authority.sign("plain", "/CN=localhost")
    broker = make_broker("--cert", cert, "--key", key, "--amqps-port", 0, "--https-port", reserve_http(),
                         "--tls-sni-certs", tmp_path / "other.pem").start()
    port = int(re.search(LISTENS, broker.wait_for_log(LISTENS)).group(1))
    for name, found in (("other.example", "other.example"), ("localhost", "localhost")):
        with socket.create_connection(("127.0.0.1", port), SECONDS) as sock:
            with authority.context().wrap_socket(sock, server_hostname=name) as secured:
                assert found in [value for _, value in secured.getpeercert()["subjectAltName"]]


def test_a_reload_shows_new_clients_the_new_certificate_and_keeps_open_ones(secret, authority, tmp_path):
    port, context = secret.https_port, authority.context()
    kept = http.client.HTTPSConnection("localhost", port, context=context, timeout=SECONDS)
    kept.request("GET", "/api/auth")
    kept.getresponse().read()
    before = serial(port, context)
    for path, kind in zip(authority.sign("renewed", "/CN=localhost"), ("pem", "key"), strict=True):
        shutil.copy(path, tmp_path / f"server.{kind}")
    begin = len(secret.lines)
    os.kill(secret.pid, signal.SIGHUP)
    secret.wait_for_log("reloaded", begin)
    for _ in range(1000):  # The process is told by a pipe, and answers nothing.
        if serial(port, context) != before:
            break
    else:
        pytest.fail("the certificate is still the old one")
    kept.request("GET", "/api/auth")
    assert kept.getresponse().status == 200
    kept.close()


def test_a_certificate_that_cannot_be_used_leaves_the_former_one(secret, authority, tmp_path):
    before = serial(secret.https_port, authority.context())
    (tmp_path / "server.pem").write_text("no certificate")
    begin = len(secret.lines)
    os.kill(secret.pid, signal.SIGHUP)
    secret.wait_for_log("not reloaded, nothing changed: tls_cert", begin)
    assert serial(secret.https_port, authority.context()) == before


def test_an_older_version_of_tls_than_allowed_is_refused(secret, authority):
    context = authority.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(secret.https_port, context)


def test_a_client_of_another_ca_does_not_trust_the_certificate(secret, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(secret.https_port, Authority(tmp_path / "theirs").context())


@pytest.mark.parametrize("octets", [
    b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70000), bytes(range(256)) * 16,
])
def test_what_is_no_tls_ends_its_connection_alone(secret, authority, octets):
    with socket.create_connection(("127.0.0.1", secret.https_port), SECONDS) as sock:
        try:
            sock.sendall(octets)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except OSError:
            pass  # It was reset, as it may be.
    assert ask(secret.https_port, authority.context())[0] == 200


def test_half_handshakes_keep_nobody_out(secret, authority):
    """More of them than there may be, from one client that never goes on."""
    address = "127.0.0.1", secret.https_port
    held = [socket.create_connection(address, SECONDS) for _ in range(doors.HANDSHAKES_MAX + 20)]
    try:
        assert ask(secret.https_port, authority.context())[0] == 200
        with contextlib.suppress(ConnectionResetError):
            assert held[0].recv(1) == b""  # The newer ones took its place.
    finally:
        for sock in held:
            sock.close()


def test_http_answers_on_a_unix_socket(make_broker, tmp_path):
    path = tmp_path / "http.sock"
    broker = make_broker("--http-unix-path", path).start()
    broker.wait_for_log(r"http\.sock \(HTTP on a unix socket\)")
    connection = http.client.HTTPConnection("localhost", timeout=SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", "/api/whoami", headers={"authorization": basic("guest", "guest")})
    assert json.loads(connection.getresponse().read())["name"] == "guest"
    connection.close()
    broker.stop()
    assert not path.exists()


def test_without_a_certificate_there_is_no_https(make_broker):
    port = reserve_http()
    broker = make_broker("--http-port", port, "--https-port", reserve_http()).start()
    broker.wait_for_log(r"\(HTTP\)")
    protocols = [each["protocol"] for each in Http(port).get("/api/overview")["listeners"]]
    assert "https" not in protocols
    broker.stop()
