"""Sends spans to a collector of OpenTelemetry, by OTLP over HTTP (opentelemetry-exporter-otlp-proto-http).

A thread sends them, WAITING_MAX wait at most: others are lost, and counted.  Nothing waits for a collector.  The
library takes headers, certificates and time-outs from OpenTelemetry's own environment variables, OTEL_EXPORTER_OTLP_*.
"""

import logging
from collections import deque
from threading import Condition, Thread
from typing import Any

from brokerd.spans.lives import Span

WAITING_MAX = 20_000
AT_ONCE = 500
END_SECONDS = 1.5


class Refusal(logging.Handler):
    """Keeps the last thing that the library said, which is why a collector did not take spans."""

    def __init__(self) -> None:
        super().__init__()
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging``."""
        self.said = record.getMessage().partition("\n")[0][:300]


class Export:
    """The thread, and the spans that wait for it."""

    def __init__(self, endpoint: str, resource: dict[str, str], version: str) -> None:
        """Raises ImportError without the library."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        library = logging.getLogger("opentelemetry")
        self._refusal = Refusal()
        library.addHandler(self._refusal)
        library.propagate = False
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        self._resource = Resource(resource)
        self._scope = InstrumentationScope("brokerd", version)
        self._waiting: deque[Span] = deque()
        self._condition = Condition()
        self._ended = False
        self.sent = self.lost = 0
        self.why = ""  # the collector took none the last time; empty: it took them
        self._thread = Thread(target=self._run, name="export", daemon=True)
        self._thread.start()

    def give(self, spans: list[Span]) -> None:
        """Have these sent."""
        with self._condition:
            room = max(WAITING_MAX - len(self._waiting), 0)
            self._waiting.extend(spans[:room])
            self.lost += len(spans) - len(spans[:room])
            self._condition.notify()

    def end(self) -> None:
        """Send what waits, unless that takes long."""
        with self._condition:
            self._ended = True
            self._condition.notify()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        while True:
            with self._condition:
                while not self._waiting and not self._ended:
                    self._condition.wait()
                spans = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            if not spans:
                return
            try:
                taken = self._exporter.export([self._made(each) for each in spans]) is SpanExportResult.SUCCESS
            except Exception as error:  # The thread outlives every fault of a collector and of the library.
                taken, self._refusal.said = False, f"{type(error).__name__}: {error}"
            if taken:
                self.sent += len(spans)
            else:
                self.lost += len(spans)
            self.why = "" if taken else self._refusal.said or "it refused them"

    def _made(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags

        sampled = TraceFlags(TraceFlags.SAMPLED)
        return ReadableSpan(
            span.name, SpanContext(span.trace, span.span, False, sampled),
            SpanContext(span.trace, span.parent, span.parent_is_remote, sampled), resource=self._resource,
            attributes=span.attributes, start_time=span.start, end_time=span.end, instrumentation_scope=self._scope,
        )  # fmt: skip
