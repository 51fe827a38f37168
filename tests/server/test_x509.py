"""Certificates as brokerd reads them, against the package cryptography."""

import datetime

import pytest
from cryptography import x509 as library
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerd.server import x509

KEY = ec.generate_private_key(ec.SECP256R1())
UTC = datetime.UTC


def certificate(subject=(), names=(), until=datetime.datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), critical=False):
    made = library.CertificateBuilder(
        issuer_name=library.Name([library.NameAttribute(NameOID.COMMON_NAME, "the issuer")]),
        subject_name=library.Name([library.NameAttribute(oid, text) for oid, text in subject]),
        public_key=KEY.public_key(), serial_number=library.random_serial_number(),
        not_valid_before=datetime.datetime(1960, 1, 1, tzinfo=UTC), not_valid_after=until)
    made = made.add_extension(library.BasicConstraints(ca=False, path_length=None), critical=True)
    if names:
        made = made.add_extension(library.SubjectAlternativeName(names), critical)
    return made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("critical", [True, False])
def test_dns_names_are_read_and_others_are_not(critical):
    names = [library.DNSName("a.example"), library.RFC822Name("x@a.example"), library.DNSName("*.b.example"),
             library.UniformResourceIdentifier("https://u.example"), library.DNSName("x" * 200 + ".example")]
    found = x509.read(certificate(names=names, critical=critical))
    assert found.dns_names == ("a.example", "*.b.example", "x" * 200 + ".example")
    assert found.common_names == ()


def test_the_common_name_is_the_subjects_and_not_the_issuers():
    found = x509.read(certificate([(NameOID.ORGANIZATION_NAME, "Ö"), (NameOID.COMMON_NAME, "bröker"),
                                   (NameOID.COMMON_NAME, "second")]))
    assert (found.dns_names, found.common_names) == ((), ("bröker", "second"))


@pytest.mark.parametrize("until", [
    datetime.datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime.datetime(1970, 1, 1, tzinfo=UTC),
    datetime.datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime.datetime(2050, 1, 1, tzinfo=UTC),
    datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime.datetime(1965, 5, 5, 5, 5, 5, tzinfo=UTC),
])
def test_the_time_is_the_end_in_both_forms(until):
    assert x509.read(certificate(until=until)).expires_at == until.timestamp()


def test_what_is_cut_or_changed_is_refused_or_read_and_never_ends_otherwise():
    octets = certificate([(NameOID.COMMON_NAME, "n")], [library.DNSName("a.example")])
    for at in range(len(octets)):
        with pytest.raises(ValueError):
            x509.read(octets[:at])
        for octet in (0, 0x1F, 0x7F, 0x80, 0x84, 0xFF):
            try:
                x509.read(octets[:at] + bytes([octet]) + octets[at + 1:])
            except ValueError:
                pass
