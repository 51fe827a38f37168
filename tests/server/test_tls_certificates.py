"""Certificates in files: their names, when they expire, and which one a client's name chooses."""

import ssl
import time

import pytest
from tests.server.certificates import Authority

from brokerd.server.tls_certificates import chooser, read, warnings

DAY = 86400


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates") / "ca")


def test_a_certificate_is_for_its_dns_names_else_for_its_common_name(authority):
    named, _ = authority.sign("named", "/CN=other", "DNS:A.example,DNS:*.b.example,IP:10.0.0.1")
    common, _ = authority.sign("common", "/O=x/CN=C.example", "IP:10.0.0.1")
    assert read(str(named), 1 << 20).names == ("a.example", "*.b.example")
    assert read(str(common), 1 << 20).names == ("c.example",)


def test_a_file_expires_with_the_first_certificate_in_it_and_one_that_has_expired_is_read_too(authority, tmp_path):
    now = time.time()
    leaf, _ = authority.sign("long", "/CN=a", days=20)      # its CA lasts for two days
    assert read(str(leaf), 1 << 20).expires_at == pytest.approx(now + 20 * DAY, abs=600)
    chain = tmp_path / "chain.pem"
    chain.write_text(leaf.read_text() + authority.file.read_text())
    assert read(str(chain), 1 << 20).expires_at == pytest.approx(now + 2 * DAY, abs=600)
    found = [read(str(leaf), 1 << 20)]
    assert warnings(found, now + 21 * DAY)[0].startswith(f"the certificate of {leaf} has expired: ")
    assert warnings(found, now)[0].startswith(f"the certificate of {leaf} expires: ")
    assert warnings(found, now - 11 * DAY) == []


def test_a_file_without_a_certificate_is_refused(tmp_path):
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(ssl.SSLError):
        read(str(tmp_path / "none.pem"), 1 << 20)
    with pytest.raises(OSError):
        read(str(tmp_path / "absent.pem"), 1 << 20)


class Session:
    context = "first"


@pytest.mark.parametrize(("name", "context"), [
    ("a.example", "a"), ("A.Example", "a"), ("x.b.example", "wild"), ("b.example", "first"), ("x.y.b.example", "first"),
    ("z", "first"), (None, "first"), ("", "first"),
])
def test_a_name_chooses_its_own_certificate_or_one_for_all_names_beside_it(name, context):
    session = Session()
    chooser({"a.example": "a", "*.b.example": "wild"})(session, name, "first")
    assert session.context == context
