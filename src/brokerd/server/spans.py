"""The broker's side of the process of spans, which needs to be told nothing after its start: see ``spans/main``."""

import asyncio
import os
from typing import TYPE_CHECKING, Any

from brokerd.server.child import Child

if TYPE_CHECKING:
    from brokerd.config import Config


class Spans(Child):
    """The process, from ``start`` to ``stop``."""

    __slots__ = ("_config", "_name")

    def __init__(self, config: "Config", name: str, loop: asyncio.AbstractEventLoop) -> None:
        """``name`` is the broker's, by which a collector knows it."""
        super().__init__("spans", loop, self._first, _nothing, "no spans")
        self._config, self._name = config, name

    def _first(self) -> dict[str, Any]:
        config = self._config
        return {
            "data_dir": os.path.abspath(config.data_dir), "endpoint": config.otlp_endpoint, "name": self._name,
            "one_in": config.otlp_one_in, "messages_per_second": config.otlp_messages_per_second,
        }  # fmt: skip


def _nothing(said: dict[str, Any]) -> None:
    pass
