"""Spans on their way to a collector that is slow, broken or gone."""

from threading import Event

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from brokerd.spans import export as module
from brokerd.spans.export import Export
from brokerd.spans.lives import Span

SPAN = Span("publish q", 1, 2, 3, True, 100, 100, {"brokerd.seq": 1})


@pytest.fixture
def export():
    export = Export("http://127.0.0.1:9/v1/traces", {"service.name": "brokerd"}, "1")
    yield export
    export.end()


def replaced(export, answer):
    sent = []

    def take(spans):
        sent.append(len(spans))
        return answer()

    export._exporter.export = take
    return sent


def test_what_waits_is_sent_at_the_end(export):
    sent = replaced(export, lambda: SpanExportResult.SUCCESS)
    export.give([SPAN] * 1200)
    export.end()
    assert (sum(sent), export.sent, export.lost, max(sent)) == (1200, 1200, 0, module.AT_ONCE)


def test_a_collector_that_does_not_answer_makes_spans_lost_and_nothing_wait(export, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 10)
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    begun, go_on = Event(), Event()

    def answer():
        begun.set()
        go_on.wait()
        return SpanExportResult.SUCCESS

    replaced(export, answer)
    export.give([SPAN])
    assert begun.wait(30)
    export.give([SPAN] * 25)
    assert export.lost == 15
    export.end()  # It does not wait for ever.
    go_on.set()


def test_an_error_of_the_library_ends_no_thread(export):
    def fail():
        raise ValueError("strange answer")

    replaced(export, fail)
    export.give([SPAN])
    export.end()
    assert (export.lost, export.why) == (1, "ValueError: strange answer")
