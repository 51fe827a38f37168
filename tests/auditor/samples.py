"""Summaries and findings as the audit makes them, written by hand: what a report must be able to show."""

import math
import random

from brokerd.audit.verdicts import exit_status, verdict_of, worst

HOUR = 3_600_000_000_000
AT = 1_767_225_600_000_000_000      # 2026-01-01 00:00 UTC
FOLDER = "42099b4af021e53fd8fd4e056c2568d7c2e3ffa8/9658403816409e66eba2175f8eff8b53a9681573"     # vhost, queue
AUDITS = ("publish_order", "fifo", "returned_first", "overtaking", "priority", "delivery_limit", "limit_kept",
          "ack_without_delivery", "double_settle", "delivery_after_settle", "agreement", "unacked", "duplicates",
          "holes", "damage")


def latency(rng, median, spread, count):
    """A latency as in summary.json: log-normal around ``median`` ns."""
    buckets = {}
    values = sorted(int(median * math.exp(rng.gauss(0, spread))) + 1 for _ in range(count))
    for value in values:
        low = int(2 ** (math.floor(math.log2(value) * 8) / 8))
        buckets[low] = buckets.get(low, 0) + 1
    shares = (("p50", .5), ("p90", .9), ("p99", .99))
    at = {name: values[min(int(share * count), count - 1)] for name, share in shares}
    return {**at, "max": values[-1], "count": count, "histogram": sorted(map(list, buckets.items()))}


def queue_facts(rng, name, hours, *, journaled=True, consumers=2):
    """One row of "queues" in summary.json."""
    messages = rng.randrange(2_000, 5_000_000)
    rows = []
    for hour in range(hours):
        published = int(messages / max(hours, 1) * (1 + 0.6 * math.sin(hour / 3.8)) * rng.uniform(.8, 1.2))
        rows.append({"hour": AT + hour * HOUR, "published": published,
                     "delivered": int(published * rng.uniform(.9, 1.05)),
                     "settled": int(published * rng.uniform(.8, .97)), "octets": published * 218})
    latencies = {"enqueue_to_delivery": latency(rng, rng.choice((200_000, 5_000_000, 900_000_000)), 1.1, 3000),
                 "delivery_to_settlement": latency(rng, 12_000_000, .7, 3000)} if journaled else {}
    counters = {"returned_nack": 812, "returned_connection_closed": 44, "returned_consumer_timeout": 3,
                "redelivered": 859, "redelivered_after_restart": 0, "out_of_sequence": 212, "overtakings": 1_930,
                "expired": 17, "dead_lettered_rejected": 5, "dead_lettered_delivery_limit": 31} if journaled else {}
    return {"vhost": "/", "queue": name, "messages": messages, "first_seq": 1, "last_seq": messages,
            "first_ts": AT, "last_ts": AT + hours * HOUR,
            "journaled": journaled, "counters": counters, "latency": latencies, "throughput": rows,
            "consumers": [{"number": n, "tag": f"ctag1.{n}", "peer": f"10.0.0.{n}:50{n}12", "user": "worker",
                           "prefetch": 50, "no_ack": False} for n in range(1, consumers + 1)]}


def audit_row(queue, audit, verdict="held", found=0, checked=0, reason="", **more):
    """One row of "audits"."""
    return {"vhost": "/", "queue": queue, "audit": audit, "verdict": verdict, "found": found, "checked": checked,
            "reason": reason, **more}


def finding(queue, audit, seq, detail):
    """One finding."""
    return {"audit": audit, "vhost": "/", "queue": queue, "priority": 0, "seq": seq, "segment": 3,
            "file": f"{FOLDER}/kept/msgs.0000000003", "offset": 64 + seq * 216,
            "ts": AT + seq * 1_234_567, "detail": detail}


def summary(names, *, violated=(), undecided=(), seed=7, hours=30):
    """A summary over queues of those names and its findings; ``violated`` has (queue, audit, found)."""
    rng = random.Random(seed)
    broken, unclear = {(q, a): n for q, a, n in violated}, set(undecided)
    audits, findings = [], []
    for name in names:
        for audit in AUDITS:
            checked = rng.randrange(1000, 4_000_000)
            if found := broken.get((name, audit)):
                more = {"overtakings": found * 9} if audit == "overtaking" else {}
                reason = f"{found:,} messages, the first with sequence number 17"
                audits.append(audit_row(name, audit, verdict_of(audit, found, False), found, checked, reason, **more))
                findings += [finding(name, audit, 17 + 3 * n, f"seq {17 + 3 * n} after seq {19 + 3 * n}, publish seq "
                                     "88 of connection 4, channel 1") for n in range(min(found, 300))]
            elif (name, audit) in unclear:
                audits.append(audit_row(name, audit, "undecidable", 0, checked, "events are missing from 2026-01-01 "
                                        "04:10:02 to 04:11:37: the broker started after a loss of power"))
            else:
                audits.append(audit_row(name, audit, "held", 0, checked))
    verdict = worst(audits)
    queues = [queue_facts(rng, name, hours, consumers=1 + index % 3) for index, name in enumerate(names)]
    stages = [{"name": "list files", "seconds": 0.21, "octets": 0},
              {"name": "scan", "seconds": 10.9, "octets": 2_820_114_227},
              {"name": "judge", "seconds": 1.4, "octets": 0}]
    inputs = {"queues": len(names), "segments": 260, "messages": sum(q["messages"] for q in queues),
              "events": 20_112_901, "octets": 2_820_114_227}
    return {
        "schema": 1, "brokerd": "0.1.0", "made": AT + 40 * HOUR, "source": "/var/lib/brokerd-dump/2026-01-02",
        "cut": AT + 31 * HOUR, "inputs": inputs, "exit": exit_status(audits),
        "verdict": verdict, "audits": audits, "queues": queues, "findings_total": sum(broken.values()),
        "options": {"crc": True, "unacked_after_s": 1800, "duplicate_window_s": 300}, "stages": stages,
    }, findings


def orders():
    """One queue with what a queue may have."""
    violated = [("orders", "overtaking", 212), ("orders", "duplicates", 4), ("orders", "publish_order", 37)]
    return summary(["orders"], violated=violated, undecided=[("orders", "holes"), ("orders", "unacked")])


def forty():
    """Forty queues, some with hostile names."""
    names = ["orders", "<script>alert(1)</script>", "a\u202egnirts\u0000 \"q\" 'x' & \ud800", "x" * 255,
             "заказы-очередь", "", *(f"tenant-{n:02d}.invoices" for n in range(34))]
    audits = ((0, "fifo"), (1, "overtaking"), (2, "damage"), (9, "overtaking"), (20, "unacked"), (21, "priority"))
    violated = [(names[n], audit, 5 + 31 * n) for n, audit in audits]
    undecided = [(name, audit) for name in names[25:33] for audit in ("holes", "fifo")]
    return summary(names, violated=violated, undecided=undecided, hours=200)
