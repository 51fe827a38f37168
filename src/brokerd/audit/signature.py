"""Signs the manifest of a dump, and verifies the signature: Ed25519, by the package ``cryptography``.

    OUT/manifest.json       names all files, counters, and the heads of the hash chains
    OUT/manifest.json.sig   the signature of its octets, 64 octets in base64, and a line's end

Keys are PEM files, as ``openssl genpkey -algorithm ed25519`` makes them.  Only who signs or verifies needs the package:
``pip install brokerd[sign]``.
"""

import base64
import binascii
import os
from typing import Any

from brokerd.audit import AuditError
from brokerd.audit.files import MANIFEST, Source, reason

SIGNATURE = MANIFEST + ".sig"
MISSING = "signatures need the Python package cryptography, which the extra brokerd[sign] installs"


class Signer:
    """The private key of a file.  Raises AuditError, one line with the reason."""

    __slots__ = ("_key",)

    def __init__(self, path: str) -> None:
        self._key = _load(path, "load_pem_private_key", "Ed25519PrivateKey", password=None)

    def sign(self, folder: str) -> str:
        """Sign the manifest of the dump in ``folder``; the path of the signature.  Raises AuditError."""
        path = os.path.join(folder, SIGNATURE)
        try:
            with open(os.path.join(folder, MANIFEST), "rb") as file:
                octets = file.read()
            with open(path, "xb") as file:
                file.write(base64.b64encode(self._key.sign(octets)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AuditError(f"{error.filename or path}: cannot be signed: {reason(error)}") from None
        return path


def verify(source: Source, key: str) -> None:
    """Verify the signature of the manifest by the public key in the file ``key``.  Raises AuditError unless it is
    good."""
    public = _load(key, "load_pem_public_key", "Ed25519PublicKey")
    octets = []
    for name in (MANIFEST, SIGNATURE):
        try:
            octets.append(source.read(name))
        except OSError as error:
            raise AuditError(f"{source.path(name)}: {reason(error)}: there is nothing to verify") from None
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(base64.b64decode(octets[1].strip(), validate=True), octets[0])
    except (InvalidSignature, binascii.Error):
        raise AuditError(f"{source.path(MANIFEST)}: was not signed by the key of {key}, or was changed since") from None


def _load(path: str, how: str, kind: str, **more: Any) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise AuditError(MISSING) from None
    try:
        with open(path, "rb") as file:
            key = getattr(serialization, how)(file.read(), **more)
    except OSError as error:
        raise AuditError(f"{path}: {reason(error)}") from None
    except TypeError:  # The package says so of a key that a password protects.
        raise AuditError(f"{path}: its key is protected by a password: give one without") from None
    except Exception:  # It raises ValueError, UnsupportedAlgorithm and others.
        key = None
    if not isinstance(key, getattr(ed25519, kind)):
        word = "private" if "private" in how else "public"
        raise AuditError(f"{path}: has no {word} key for Ed25519 in PEM")
    return key
