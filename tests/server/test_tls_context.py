"""The context of TLS: what its options must be.  What clients see of it: ``test_tls``, ``management/test_doors``."""

import ssl

import pytest
from tests.server.certificates import Authority

from brokerd.config import Config
from brokerd.errors import ConfigError
from brokerd.server.tls_context import context, reason


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    certificate, key = Authority(tmp_path_factory.mktemp("context") / "ca").sign("server", "/CN=localhost")
    return {"tls_cert": str(certificate), "tls_key": str(key)}


def test_the_options_make_the_context(files):
    made = context(Config(**files, tls_min_version="1.3"))
    assert made.minimum_version == ssl.TLSVersion.TLSv1_3
    assert made.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(("options", "text"), [
    ({"tls_ciphers": "none such"}, "(?i)tls_ciphers: no cipher"),
    ({"tls_verify_peer": True}, "tls_verify_peer needs tls_ca_cert"),
    ({"tls_ca_cert": "/nowhere/ca.pem"}, "tls_ca_cert /nowhere/ca.pem: No such file or directory"),
    ({"tls_cert": "/dev/zero"}, "tls_cert /dev/zero: "),
    ({"tls_sni_certs": "/nowhere/a.pem"}, "tls_sni_certs /nowhere/a.pem: No such file or directory"),
    ({"tls_sni_certs": __file__}, f"tls_sni_certs {__file__}: "),
])
def test_what_cannot_be_used_is_named(files, options, text):
    with pytest.raises(ConfigError, match=text):
        context(Config(**{**files, **options}))


def test_a_reason_has_no_line_of_openssls_source():
    assert reason(ssl.SSLError(1, "[SSL: NO_SHARED_CIPHER] no shared cipher (_ssl.c:1)")) != ""
