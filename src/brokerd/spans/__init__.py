"""Spans for OpenTelemetry, from what order journals tell: a process beside the broker, ``brokerd spans``.

    msgs.N, journal.N ── follow ──> records with a traceparent, events ── lives ──> spans ── export ──> OTLP over HTTP

The broker itself does nothing for spans: it writes the order journal of each queue that has one anyway.  This process
reads the files behind it, at most ``follow.SHARE`` of its time, and loses spans before it holds up anything.
"""
