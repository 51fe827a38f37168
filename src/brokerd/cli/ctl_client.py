"""The client of a broker's control socket: sends a request and reads its answer.  Protocol: ``server/control``."""

import json
import os
from collections.abc import Callable
from typing import Any

from brokerd import local_socket
from brokerd.errors import BrokerError

ANSWER_SECONDS = 60.0


class Refused(BrokerError):
    """The broker refused the request.  ``code``: see ``server/control``."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class NotRunning(BrokerError):
    """No broker runs on that data directory."""


class Client:
    """A connection.  Raises NotRunning; BrokerError if a broker runs but cannot be reached."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, local_socket.NAME)
        try:
            self._socket = local_socket.connect(directory, ANSWER_SECONDS)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise NotRunning(f"no broker is running on {directory}: {self._path}: {error.strerror}") from None
        except OSError as error:
            hint = "; brokerctl must run as the broker's user" if isinstance(error, PermissionError) else ""
            raise BrokerError(f"{self._path}: {error.strerror or error}{hint}") from None
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def ask(
        self, verb: str, fields: dict[str, Any], progress: Callable[[dict[str, Any]], object] | None = None, *,
        seconds: float | None = ANSWER_SECONDS,
    ) -> Any:  # fmt: skip
        """Ask for an operation, and return its result.

        ``progress`` is called with each progress report of the broker.  At most ``seconds`` may pass between two lines
        from the broker; None: any time.  Raises Refused; BrokerError if the broker goes away or does not answer.
        """
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(json.dumps({"verb": verb, **fields}).encode() + b"\n")
            while True:
                line = self._lines.readline()
                answer = json.loads(line) if line.endswith(b"\n") else None
                if not isinstance(answer, dict):
                    raise BrokerError(f"{self._path}: the broker went away")
                if "progress" in answer:
                    if progress is not None:
                        progress(answer["progress"])
                elif "result" in answer:
                    return answer["result"]
                else:
                    raise Refused(str(answer.get("error")), int(answer.get("code", 500)))
        except TimeoutError:
            raise BrokerError(f"{self._path}: no answer in {seconds:g} s") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise BrokerError(f"{self._path}: the broker went away: {reason}") from None
