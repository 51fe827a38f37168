"""The context of TLS that the options name, and the gate that holds it, so that a reload can replace it.

The broker makes one for AMQP, and the management process one for HTTP.  Knows nothing of connections.
"""

import ssl
from typing import TYPE_CHECKING

from brokerd.config import FILE_OCTETS_MAX
from brokerd.errors import ConfigError
from brokerd.named_file import read_regular
from brokerd.server import tls_certificates
from brokerd.server.kernel_tls import OP_ENABLE_KTLS

if TYPE_CHECKING:
    from brokerd.config import Config


def context(config: "Config") -> ssl.SSLContext:
    """The context for new connections, with those of other names behind it.

    Raises ConfigError, one line, for unusable files or ciphers.
    """
    made = _context(config, config.tls_cert, config.tls_key, "tls_cert")
    others: dict[str, ssl.SSLContext] = {}
    for path in more_files(config):
        other = _context(config, path, "", "tls_sni_certs")
        for name in _certificate(path, "tls_sni_certs").names:
            others.setdefault(name, other)
    if others:
        made.sni_callback = tls_certificates.chooser(others)
    return made


def more_files(config: "Config") -> list[str]:
    """The files of `tls_sni_certs`."""
    return [path for path in (path.strip() for path in config.tls_sni_certs.split(",")) if path]


def certificates(config: "Config") -> list[tls_certificates.Certificate]:
    """The certificates and CAs that the options name.  Raises ConfigError."""
    files = [("tls_cert", config.tls_cert), *(("tls_sni_certs", path) for path in more_files(config)),
             ("tls_ca_cert", config.tls_ca_cert)]  # fmt: skip
    return [_certificate(path, option) for option, path in files if path]


def _certificate(path: str, option: str) -> tls_certificates.Certificate:
    try:
        return tls_certificates.read(path, FILE_OCTETS_MAX)
    except ssl.SSLError as error:
        raise ConfigError(f"{option} {path}: {reason(error)}") from error
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from error


def _context(config: "Config", certificate: str, key: str, option: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3 if config.tls_min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION
    if config.tls_in_kernel:
        made.options |= OP_ENABLE_KTLS  # This has no effect on the TLS of the loop.
    meant = ""  # by an error
    try:
        for name, path in (("tls_key", key), ("tls_ca_cert", config.tls_ca_cert), (option, certificate)):
            if path:
                meant = f"{name} {path}"
                read_regular(path, FILE_OCTETS_MAX)  # OpenSSL would wait for a pipe, and read a device for ever.
        # OpenSSL does not say which of the two files it means.
        meant = f"{option} {certificate}" + (f" and tls_key {key}" if key else "")
        # The empty password keeps OpenSSL from asking the terminal for one.
        made.load_cert_chain(certificate, key or None, password="")
        if config.tls_ca_cert:
            meant = f"tls_ca_cert {config.tls_ca_cert}"
            made.load_verify_locations(config.tls_ca_cert)
        elif config.tls_verify_peer or config.tls_fail_if_no_peer_cert:
            raise ConfigError("tls_verify_peer needs tls_ca_cert: any certificate of any CA would do")
        if config.tls_ciphers:
            meant = "tls_ciphers"
            made.set_ciphers(config.tls_ciphers)
    except ssl.SSLError as error:
        raise ConfigError(f"{meant}: {reason(error)}") from error
    except OSError as error:
        raise ConfigError(f"{meant}: {error.strerror}") from error
    if config.tls_fail_if_no_peer_cert:
        made.verify_mode = ssl.CERT_REQUIRED
    elif config.tls_verify_peer:
        made.verify_mode = ssl.CERT_OPTIONAL
    return made


def reason(error: BaseException) -> str:
    """The reason in an SSLError, such as ``certificate has expired``, without the line numbers of OpenSSL's source."""
    for name in ("verify_message", "reason"):
        reason = getattr(error, name, None)
        if reason:
            return str(reason).replace("_", " ").lower()
    return str(error.args[-1]) if error.args else type(error).__name__


class Gate:
    """The context for the next client, and the options that it was made from; a reload replaces both."""

    __slots__ = ("config", "context")

    def __init__(self, config: "Config", context: ssl.SSLContext) -> None:
        self.config = config
        self.context = context
