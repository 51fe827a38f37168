"""Contents of messages, as columns of the table ``messages`` that a reading has only if it names them.

    headers     the headers as a JSON object; null without headers
    body        the octets of the body

    spark.read.format("brokerd").option("columns", "seq, time, headers, body").load(path)

Other readings do not pay for them.  Properties are decoded one message at a time, some 10 µs each.  A damaged record
has null for what cannot be read.
"""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from brokerd.errors import AMQPError
from brokerd.operations.plain import plain
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.wire.properties import decode_header

if TYPE_CHECKING:
    from brokerd.audit.segment import SegmentData

ASKED: dict[str, dict[str, str]] = {"messages": {"headers": "string", "body": "binary"}}
_HEAD = b"\0\x3c" + bytes(10)  # of a content header, before the property flags
HEADERS = 0x2000  # property flag
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # Spark takes none.


class Contents:
    """The columns; ``tables.Messages`` has the records."""

    if TYPE_CHECKING:

        @property
        def data(self) -> "SegmentData": ...

        @property
        def _records(self) -> reading.Records: ...

    def _headers(self) -> pa.Array:
        octets = self.data.octets
        return pa.array([_headers_of(octets[start:stop]) for start, stop, _ in self._spans()], pa.string())

    def _body(self) -> pa.Array:
        octets = self.data.octets
        return pa.array([bytes(octets[stop:end]) for _, stop, end in self._spans()], pa.binary())

    def _spans(self) -> list[tuple[int, int, int]]:
        """Of each record: where its property flags begin, where its properties end, where its body ends."""
        octets, records = self.data.octets, self._records
        bodies = reading.body_octets(octets, records)
        ends = records.positions + records.headers["length"].astype(np.int64)
        long = records.headers["meta_len"] == layout.LONG_META
        starts = records.positions + layout.HEADER_OCTETS + np.where(long, 4, 0)
        spans = []
        for start, end, body in zip(starts.tolist(), ends.tolist(), bodies.tolist(), strict=True):
            at = start
            for _ in range(2):  # exchange and routing key
                at += 1 + octets[at] if at < len(octets) else 0
            spans.append((at, max(end - body, at), end))
        return spans


def _headers_of(properties: bytes) -> str | None:
    """The JSON of the headers among these flags and properties."""
    if len(properties) < 2 or not int.from_bytes(properties[:2]) & HEADERS:
        return None
    try:
        headers: Any = decode_header(_HEAD + bytes(properties))[1].headers
    except AMQPError:
        return None
    return json.dumps(plain(headers), ensure_ascii=False).translate(_SURROGATES)
