"""Signatures of manifests: made and verified, and in which words they are refused."""

import builtins
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from brokerd.audit import AuditError
from brokerd.audit.files import Source
from brokerd.audit.signature import Signer, verify

PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
NONE = serialization.NoEncryption()


def write_keys(folder, name="key", key=None, protection=NONE):
    """(private, public) files."""
    key = key or ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(PEM, PKCS8, protection))
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return str(private), str(public)


@pytest.fixture
def dump(tmp_path):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "manifest.json").write_bytes(b'{"manifest": 1, "queues": []}\n')
    return tmp_path / "dump"


def test_what_was_signed_is_verified_also_by_openssl(dump, tmp_path):
    private, public = write_keys(tmp_path)
    assert Signer(private).sign(str(dump)) == str(dump / "manifest.json.sig")
    verify(Source(str(dump)), public)
    signature = tmp_path / "raw"
    signature.write_bytes(subprocess.run(["base64", "-d", dump / "manifest.json.sig"], capture_output=True).stdout)
    subprocess.run(["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-sigfile", signature,
                    "-in", dump / "manifest.json"], check=True, capture_output=True)


@pytest.mark.parametrize("spoil", [
    lambda dump: (dump / "manifest.json").write_bytes(b'{"manifest": 1, "queues": [] }\n'),
    lambda dump: (dump / "manifest.json.sig").write_bytes(b"nonsense"),
    lambda dump: (dump / "manifest.json.sig").write_bytes(b""),
    lambda dump: (dump / "manifest.json.sig").write_bytes(b"A" * 86 + b"==\n"),
])
def test_what_was_changed_since_is_refused(dump, tmp_path, spoil):
    private, public = write_keys(tmp_path)
    Signer(private).sign(str(dump))
    spoil(dump)
    with pytest.raises(AuditError) as refused:
        verify(Source(str(dump)), public)
    assert str(refused.value) == f"{dump}/manifest.json: was not signed by the key of {public}, or was changed since"


def test_a_signature_by_another_key_is_refused(dump, tmp_path):
    Signer(write_keys(tmp_path, "one")[0]).sign(str(dump))
    with pytest.raises(AuditError, match="was not signed by the key of"):
        verify(Source(str(dump)), write_keys(tmp_path, "two")[1])


def test_without_a_signature_or_manifest_there_is_nothing_to_verify(dump, tmp_path):
    private, public = write_keys(tmp_path)
    with pytest.raises(AuditError, match=r"manifest.json.sig: No such file or directory: there is nothing to verify$"):
        verify(Source(str(dump)), public)
    (dump / "manifest.json").unlink()
    with pytest.raises(AuditError, match=r"manifest.json: No such file or directory: there is nothing to verify$"):
        verify(Source(str(dump)), public)
    with pytest.raises(AuditError, match=r"manifest.json: cannot be signed: No such file or directory$"):
        Signer(private).sign(str(dump))


def test_a_signature_that_is_there_is_not_written_over(dump, tmp_path):
    signer = Signer(write_keys(tmp_path)[0])
    signer.sign(str(dump))
    with pytest.raises(AuditError, match=r"manifest.json.sig: cannot be signed: File exists$"):
        signer.sign(str(dump))


def test_what_is_no_key_for_it_is_refused_in_one_line(tmp_path):
    private, public = write_keys(tmp_path)
    other, _ = write_keys(tmp_path, "other", ec.generate_private_key(ec.SECP256R1()))
    locked, _ = write_keys(tmp_path, "locked", protection=serialization.BestAvailableEncryption(b"secret"))
    (tmp_path / "text").write_text("text")
    for path, text in ((public, "has no private key for Ed25519 in PEM"), (other, "has no private key"),
                       (str(tmp_path / "text"), "has no private key"), (locked, "its key is protected by a password"),
                       (str(tmp_path / "none"), "No such file or directory")):
        with pytest.raises(AuditError) as refused:
            Signer(path)
        assert str(refused.value).startswith(f"{path}: {text}")
        assert "\n" not in str(refused.value)
    with pytest.raises(AuditError, match="has no public key for Ed25519 in PEM"):
        verify(Source(str(tmp_path)), private)


def test_without_the_package_it_is_said_what_installs_it(tmp_path, monkeypatch):
    private, public = write_keys(tmp_path)
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    for work in (lambda: Signer(private), lambda: verify(Source(str(tmp_path)), public)):
        with pytest.raises(AuditError, match=r"brokerd\[sign\]"):
            work()
