"""The context of TLS that the options name, and the gate that holds it, so that a reload can replace it.

The broker makes one for AMQP, and the management process one for HTTP.  Knows nothing of connections.
"""

import ssl
from typing import TYPE_CHECKING

from brokerd.config import FILE_OCTETS_MAX
from brokerd.errors import ConfigError
from brokerd.named_file import read_regular
from brokerd.server.kernel_tls import OP_ENABLE_KTLS

if TYPE_CHECKING:
    from brokerd.config import Config


def context(config: "Config") -> ssl.SSLContext:
    """The context for new connections.  Raises ConfigError, one line, for unusable files or ciphers."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3 if config.tls_min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION
    if config.tls_in_kernel:
        made.options |= OP_ENABLE_KTLS  # This has no effect on the TLS of the loop.
    meant = ""  # by an error
    try:
        for option in ("tls_key", "tls_ca_cert", "tls_cert"):
            if path := getattr(config, option):
                meant = f"{option} {path}"
                read_regular(path, FILE_OCTETS_MAX)  # OpenSSL would wait for a pipe, and read a device for ever.
        # OpenSSL does not say which of the two files it means.
        meant = f"tls_cert {config.tls_cert}" + (f" and tls_key {config.tls_key}" if config.tls_key else "")
        # The empty password keeps OpenSSL from asking the terminal for one.
        made.load_cert_chain(config.tls_cert, config.tls_key or None, password="")
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
