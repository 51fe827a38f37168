"""Certificates for tests, made with the ``openssl`` command: a CA, and what it signs."""

import shutil
import ssl
import subprocess

import pytest

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """One CA in a folder of its own."""

    def __init__(self, folder):
        if shutil.which("openssl") is None:
            pytest.skip("certificates are made with the openssl command, which is not there")
        self.folder = folder
        folder.mkdir()
        self.file = folder / "ca.pem"
        # Clients with Python from 3.13 on insist on a CA's key usage, and on the key identifiers below.
        self._openssl("req", "-x509", *KEY, "-days", "2", "-subj", "/CN=test CA", "-keyout", folder / "ca.key",
                      "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", self.file)

    def sign(self, name, subject, alternative="DNS:localhost,IP:127.0.0.1", days=2):
        """(certificate, key) as files."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
        self._openssl("req", *KEY, "-subj", subject, "-keyout", key, "-out", request)
        self._openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.folder / "ca.key",
                      "-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", certificate)
        return certificate, key

    @staticmethod
    def _openssl(*arguments):
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def context(self, certificate=None, version=None):
        """What a client of this CA connects with; ``certificate`` is what ``sign`` gave."""
        made = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            made.load_cert_chain(*certificate)
        if version is not None:
            made.minimum_version = made.maximum_version = version
        return made
