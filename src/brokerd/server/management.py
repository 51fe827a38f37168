"""The broker's side of the management process: the lines that it gets, and its lines that are not for the log.

It says that it listens ({"listening": [[address, kind], ...]}), or that it cannot: see ``management/main``.  Nothing of
HTTP is imported here, and the process is started after the broker listens for AMQP.
"""

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from brokerd.server.child import Child

if TYPE_CHECKING:
    from brokerd.config import Config

log = logging.getLogger("brokerd")

KEY_OCTETS = 32


class Management(Child):
    """The process, from ``start`` to ``stop``."""

    __slots__ = ("_config", "_key", "data_dir")

    def __init__(self, config: "Config", loop: asyncio.AbstractEventLoop) -> None:
        super().__init__("management", loop, self._first, self._on_listening, "no HTTP")
        self.data_dir = os.path.abspath(config.data_dir)
        self._config = config
        self._key = os.urandom(KEY_OCTETS).hex()  # The same over all its starts: sessions outlive the process.

    def _first(self) -> dict[str, Any]:
        return {"data_dir": self.data_dir, "key": self._key, **settings_of(self._config)}

    def renew(self, config: "Config") -> None:
        """The files of TLS may have changed: the next connections have what they hold now."""
        self._config = config
        self.tell({"tls": tls_of(config), "oauth": oauth_of(config)})

    def _on_listening(self, said: dict[str, Any]) -> None:
        for address, kind in said["listening"]:
            log.info("listening on %s (%s)", address, kind)


def settings_of(config: "Config") -> dict[str, Any]:
    """Where the process listens, and what its TLS has."""
    return {
        "bind": config.http_bind or config.bind,
        "port": config.http_port,
        "https_port": config.https_port if config.tls_cert else 0,
        "unix_path": config.http_unix_path,
        "websocket_origins": config.websocket_origins,
        "tls": tls_of(config),
        "oauth": oauth_of(config),
    }


def tls_of(config: "Config") -> dict[str, str]:
    """The options of TLS that browsers meet.  None of them asks for a client's certificate."""
    names = ("tls_cert", "tls_key", "tls_sni_certs", "tls_min_version", "tls_ciphers")
    return {name: getattr(config, name) for name in names}


def oauth_of(config: "Config") -> dict[str, str]:
    """The options that the login of pages by an OpenID provider needs."""
    return {
        "issuer": config.oauth2_issuer, "jwks": config.oauth2_jwks, "ca_cert": config.oauth2_ca_cert,
        "client_id": config.oauth2_client_id, "scopes": config.oauth2_login_scopes,
        "pages_url": config.oauth2_pages_url,
    }  # fmt: skip
