"""The life of one message as text for people; without a running broker it comes from the files.

    message 3 of queue 'orders' in vhost '/': acked

      published by connection 1, channel 1, as its publish 3, to exchange '' with routing key 'orders'
      1.2 kB, persistent, priority 0; segment 1 at 1264

      2026-11-21 12:00:01.000000001            enqueued
      2026-11-21 12:00:01.002000001   +2.0 ms  delivered  to 'ctag1' (127.0.0.1:4242), tag 1
      2026-11-21 12:00:01.004500001   +4.5 ms  returned   by 'ctag1' (127.0.0.1:4242), nack, failed deliveries: 1

``brokerd.audit.trace`` makes the tables.
"""

from typing import Any

from brokerd.cli.ctl_text import clean, columns, moment, octets, queue, span
from brokerd.errors import BrokerError

KNOWN = {
    "part": "The order journal does not cover the message's whole life: events may be missing.",
    "acks only": "The queue had no order journal: neither its first delivery nor the times of events are known.",
}
SPOILED_LINES = 20  # the JSON has all


def read(directory: str, vhost: str, name: str, seq: int) -> dict[str, Any]:
    """The trace from the files of a data directory, a dump or an archive.  Raises BrokerError, AuditError."""
    from glob import escape  # These imports are here because only reading files needs them.

    from brokerd.audit.files import open_source
    from brokerd.audit.trace import trace

    source = open_source(directory)
    found = [each for each in source.queues(escape(name)) if (each.vhost, each.queue) == (vhost, name)]
    if not found:
        raise BrokerError(f"no {queue({'queue': name, 'vhost': vhost})} in {directory}")
    tables = [trace(source, each, seq) for each in found]  # An archive may have several: queues deleted since.
    return next((table for table in tables if table["known"] != "nothing"), tables[0])


def text(table: dict[str, Any]) -> str:
    """The trace as lines of text."""
    lines = [f"message {table['seq']} of {queue(table)}: {table['state']}"]
    if table.get("reason"):
        lines[0] += f" ({clean(table['reason'])})"
    if table["known"] == "nothing":
        return "\n".join([lines[0], "", f"  Nothing is known of it: {clean(table['why'])}.", *_spoiled(table)])
    record, start = table["record"], None
    lines.append("")
    if record is None:
        lines.append("  its record is gone with a compaction")
    else:
        start = record["ts"]
        lines += [f"  {each}" for each in _record(table, record)]
    lines.append("")
    lines += ["  " + line for line in columns([_event(event, start) for event in table["events"]], {1})]
    if table["known"] in KNOWN:
        lines += ["", f"  {KNOWN[table['known']]}"]
    return "\n".join([*lines, *_spoiled(table)])


def exit_status(table: dict[str, Any]) -> int:
    """1 if a file that tells of the message is spoiled, else 0."""
    return 1 if table.get("spoiled") else 0


def _spoiled(table: dict[str, Any]) -> list[str]:
    """The damage in the files of the message's segment."""
    rows = table.get("spoiled") or []
    if not rows:
        return []
    lines = ["", "  Spoiled, so that the message's life may have been another one:"]
    for each in rows[:SPOILED_LINES]:
        at = f" at {each['offset']}" if each["offset"] >= 0 else ""
        lines.append(f"    {clean(each['file'])}{at}: {clean(each['detail'])}")
    if len(rows) > SPOILED_LINES:
        lines.append(f"    ... and {len(rows) - SPOILED_LINES} more")
    return lines


def _record(table: dict[str, Any], record: dict[str, Any]) -> list[str]:
    where = f"exchange '{clean(record['exchange'])}' with routing key '{clean(record['routing_key'])}'"
    if record["connection"]:
        who = (f"published by connection {record['connection']}, channel {record['channel']}, "
               f"as its publish {record['publish_seq']}, to {where}")  # fmt: skip
    else:
        who = f"put there by the broker, from {where}"
    facts = [octets(record["body_octets"]), "persistent" if record["persistent"] else "not persistent",
             f"priority {table['priority']}"]  # fmt: skip
    if record["message_id"] is not None:
        facts.append(f"message-id '{clean(record['message_id'])}'")
    return [who, f"{', '.join(facts)}; segment {table['segment']} at {table['position']}"]


def _event(event: dict[str, Any], start: int | None) -> tuple[str, str, str, str]:
    """When the event was, how long after the message was enqueued, what it was, and by whom and why."""
    at, what = event["ts"], event["what"]
    after = span(at - start) if at is not None and start is not None and what != "enqueued" else ""
    return (moment(at) if at is not None else "-", after, what, ", ".join(_details(event)))


COUNTING = ("delivered", "delivered again", "returned", "set aside", "parked", "group parked")


def _details(event: dict[str, Any]) -> list[str]:
    details = []
    delivered = event["what"] == "delivered"
    if event.get("consumer"):
        details.append(f"{'to' if delivered else 'by'} {_who(event['consumer'])}")
    if event.get("cause"):
        details.append(str(event["cause"]))
    if event.get("delay_ms") is not None:
        details.append(f"in {event['delay_ms']} ms")
    if delivered:
        details.append(f"tag {event['delivery_tag']}")
        details += [text for name, text in (
            ("redelivered", "redelivered"), ("by_get", "by basic.get"), ("no_ack", "without ack"),
            ("before_start", "delivered before the broker's last start"),
        ) if event.get(name)]  # fmt: skip
    if event.get("count") and event["what"] in COUNTING:
        details.append(f"failed deliveries: {event['count']}")
    return details


def _who(consumer: dict[str, Any]) -> str:
    """A consumer by its tag, or by its number if the tag is not known."""
    if "tag" in consumer:
        return f"'{consumer['tag']}' ({consumer.get('peer', '?')})"
    if "number" in consumer:
        return f"consumer {consumer['number']}"
    return f"connection {consumer.get('connection', '?')}"
