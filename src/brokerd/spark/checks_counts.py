"""The audits of ``brokerd.audit.counts`` and ``words`` as SQL: the broker's counts, compared with the files.

``RULES`` has for each audit its findings, its cases, and what it needs, in the form that ``checks`` has them.
``HELPERS`` are views that they read; ``overtaken`` has the findings of the audit ``overtaking``.
"""

from brokerd.audit.counts import STATES, WAITING_ROOMS
from brokerd.audit.lifecycle import CAUSES, REASONS
from brokerd.spark import missing
from brokerd.store.format import ORDER_COUNTERS

_SUMS = {
    **{name: f"type = 'returned' AND reason = '{cause}'" for name, cause in zip(ORDER_COUNTERS, CAUSES[1:],
                                                                              strict=False)},
    "redelivered": "redelivered", "redelivered_after_restart": "before_start",
    **{name: f"type = 'dead-lettered' AND reason = '{reason}'" for name, reason in zip(
        ORDER_COUNTERS[10:14], REASONS[1:5], strict=True)},
    "rejected": "type = 'rejected'", "expired": "type = 'expired'",
    "dropped_maxlen": "type = 'dropped' AND reason = 'maxlen'",
    "dropped_delivery_limit": "type = 'dropped' AND reason = 'delivery_limit'",
    "removed": "type = 'dropped' AND reason = 'removed'", "purged": "type = 'purged'",
}

# What the arrays count of messages since their replays: the lives before are in the tables.
_AGAIN = """
    SELECT vhost, queue, transform(split(again, ' '), count -> bigint(count)) AS counts
    FROM segments WHERE again IS NOT NULL"""

# The broker's counters once more, from the journals.
RECOUNT = f"""
    SELECT vhost, queue, name, sum(value) AS value FROM (
    SELECT vhost, queue, stack({len(_SUMS)}, {", ".join(f"'{name}', {name}" for name in _SUMS)}) AS (name, value)
    FROM (SELECT vhost, queue, {", ".join(f"count_if({rule}) AS {name}" for name, rule in _SUMS.items())}
          FROM steps GROUP BY ALL)
    UNION ALL
    SELECT vhost, queue, stack(2, 'out_of_sequence', count(*), 'overtakings', sum(weight)) AS (name, value)
    FROM overtaken GROUP BY vhost, queue
    UNION ALL
    SELECT vhost, queue, get(array({", ".join(f"'{name}'" for name in ORDER_COUNTERS)}), place) AS name, value
    FROM (SELECT vhost, queue, posexplode(slice(counts, 1, {len(ORDER_COUNTERS)})) AS (place, value) FROM ({_AGAIN})))
    GROUP BY vhost, queue, name"""

# Whether the files have all that happened since the queue was declared; sure: no loss of power took counts.
WHOLE = """
    SELECT q.vhost, q.queue,
           r.queue IS NULL AND coalesce(f.first_seq, 1) = 1 AND coalesce(f.lost, 0) = 0 AND coalesce(l.uncovered, 0) = 0
           AND NOT coalesce(g.gaps, false) AS whole,
           NOT coalesce(g.cut, false) AS sure
    FROM queues q
    LEFT JOIN (SELECT DISTINCT vhost, queue FROM removals) r USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, min(first_seq) AS first_seq, sum(lost) AS lost FROM segments GROUP BY ALL) f
        USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, count_if(NOT covered) AS uncovered FROM lifecycle GROUP BY ALL) l
        USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, bool_or(reason <> 'restarted') AS gaps, bool_or(reason = 'power lost') AS cut
               FROM events WHERE type = 'started' GROUP BY ALL) g USING (vhost, queue)"""

# How many messages were ready and out at the cut of a dump, at least and at most, beside what its manifest says of it;
# only of queues of which the files can tell.  A message that is set aside while its dead letter is stored is neither.
STANDING = f"""
    WITH asides AS (
        SELECT vhost, queue, priority, segment, seq, max_by(type, entry) IN ('set aside', 'parked') AS aside
        FROM acks WHERE seq IS NOT NULL GROUP BY ALL),
    sums AS (
        SELECT l.vhost, l.queue, count_if(NOT covered) AS unknown,
               count_if(covered AND coalesce(aside, false)) AS aside,
               count_if(covered AND NOT coalesce(aside, false) AND ended = 'unacked') AS out,
               count_if(covered AND NOT coalesce(aside, false) AND ended = 'ready') AS ready,
               count_if(covered AND NOT coalesce(aside, false) AND ended = 'ready' AND deliveries = 0) AS fresh
        FROM lifecycle l LEFT JOIN asides a USING (vhost, queue, priority, segment, seq)
        WHERE ended IN ('ready', 'unacked') GROUP BY ALL),
    bounds AS (
        SELECT q.vhost, q.queue, coalesce(s.out, 0L) + coalesce(a.out, 0L) AS out,
               CASE WHEN d.queue IS NULL THEN coalesce(s.ready, 0L) + coalesce(a.ready, 0L)
                    ELSE coalesce(s.fresh, 0L) END AS least,
               coalesce(s.ready + s.aside, 0L) + coalesce(a.ready, 0L) AS most
        FROM queues q JOIN whole w USING (vhost, queue) LEFT JOIN sums s USING (vhost, queue)
        LEFT JOIN dead_lettering d USING (vhost, queue)
        LEFT JOIN (SELECT vhost, queue, sum(get(counts, {len(ORDER_COUNTERS)})) AS out,
                          sum(get(counts, {len(ORDER_COUNTERS) + 1})) AS ready
                   FROM ({_AGAIN}) GROUP BY vhost, queue) a USING (vhost, queue)
        LEFT ANTI JOIN ({missing.DAMAGE}) x ON x.vhost = q.vhost AND x.queue = q.queue
        WHERE w.sure AND coalesce(s.unknown, 0L) = 0 AND NOT startswith(q.queue, '{WAITING_ROOMS}'))
    SELECT vhost, queue, name, value, CASE name WHEN 'ready' THEN least ELSE out END AS least,
           CASE name WHEN 'ready' THEN most ELSE out END AS most
    FROM bounds JOIN told USING (vhost, queue) WHERE place = 'manifest' AND name IN {STATES}"""

HELPERS = {"recount": RECOUNT, "whole": WHOLE, "standing": STANDING}

_COMPARED = f"""
    SELECT t.*, coalesce(r.value, 0L) AS mine, w.sure,
           w.whole AND NOT (coalesce(g.grouped, false) AND t.name IN ('out_of_sequence', 'overtakings')) AS whole
    FROM told t JOIN whole w USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, bool_or(groups) AS grouped FROM settings GROUP BY ALL) g
        ON g.vhost = t.vhost AND g.queue = t.queue
    LEFT JOIN recount r ON r.vhost = t.vhost AND r.queue = t.queue AND r.name = t.name
    WHERE t.name NOT IN {STATES} AND ({{overtaking}} OR t.name NOT IN ('out_of_sequence', 'overtakings'))"""

_SETTLED = """
    SELECT s.*, q.cut FROM (
        SELECT *, coalesce(max(CASE WHEN base_seq > 0 THEN segment END) OVER (PARTITION BY vhost, queue, priority)
                           > segment, false) AS followed,
               NOT coalesce(damage, '') LIKE '%acks.%' AS has_acks
        FROM segments) s
    JOIN queues q USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, true AS power_lost FROM events
               WHERE type = 'started' AND reason = 'power lost' GROUP BY ALL) p
      ON p.vhost = s.vhost AND p.queue = s.queue
    WHERE (s.kept OR q.cut IS NOT NULL
           OR (NOT s.open AND (s.stopped OR (s.begun IS NOT NULL AND p.power_lost IS NULL))))
      AND NOT s.late AND NOT coalesce(s.damage, '') LIKE '%msgs.%'"""

_WORD = """SELECT vhost, queue, priority, 0L AS seq, segment, 0L AS ts, 1L AS weight, {detail} AS detail FROM ({rows})
    WHERE """

RULES = {
    "counters": (
        f"""SELECT vhost, queue, 0 AS priority, 0L AS seq, 0L AS segment, 0L AS ts, 1L AS weight,
                   format_string('%s: %d by the broker (%s), %d by the journals', name, value, place, mine) AS detail
        FROM ({_COMPARED}) WHERE (sure AND mine > value) OR (whole AND mine < value)
        UNION ALL
        SELECT vhost, queue, 0, 0L, 0L, 0L, 1L,
               format_string('%s: %d by the broker (manifest), %d by the journals', name, value,
                             CASE WHEN value > most THEN most ELSE least END)
        FROM standing WHERE value NOT BETWEEN least AND most""",
        f"""SELECT vhost, queue, count(*) AS checked
            FROM (SELECT vhost, queue FROM ({_COMPARED}) UNION ALL SELECT vhost, queue FROM standing)
            GROUP BY ALL""", "events"),
    "words": (
        " UNION ALL ".join(_WORD.format(detail=detail, rows=_SETTLED) + where for detail, where in (
            ("format_string('says that it has %d records, and has %d', said_records, records)",
             "said_records <> records"),
            ("format_string('says %d of whether it is full, which cannot be', said_sealed)",
             "said_sealed NOT IN (0, 1, 2) OR (said_sealed = 0 AND followed)"),
            ("'has a whole record behind the end of its records'", "more_records"),
            ("format_string('says that %d records are settled, and has %d', said_settled, settled)",
             "said_settled <> settled AND has_acks"),
            ("format_string('says that it has %d entries, and has %d', said_entries, written)",
             "said_entries <> written AND has_acks"),
            ("'has entries of records that went out, which the cursor has not passed'", "more_passed AND has_acks"),
            ("'has a whole event behind those that it counts'", "more_events"))),
        f"SELECT vhost, queue, count(*) AS checked FROM ({_SETTLED}) GROUP BY ALL", "records"),
}
