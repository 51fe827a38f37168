"""The audits once more, as SQL over the views: ``run`` judges, and ``violations`` makes a table of the findings.

``brokerd.audit`` judges with arrays, in one pass over each segment. This module has the same rules in SQL, which people
can compare with the documentation. Both must agree: same ``found``, same ``overtakings``, same verdict. This one is
slower, because it sorts rows that the other finds in order. It is for tests, and for analysts who change a rule.

Each rule selects its findings: vhost, queue, priority, seq, segment, ts, weight (for overtaking: how many messages
went ahead), detail. Most rules read the view ``steps``: each event with the event before and after it in its message's
life. Times are ns. A broker's *life* is the time between two starts.

Does not judge spans of time, nor groups by anything but the routing key, because the tables do not have headers.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.audit.scan import Options
from brokerd.spark import (
    agreement,
    by_arrays,
    checks_cases,
    checks_counts,
    checks_deliveries,
    checks_holders,
    checks_places,
    lives,
    missing,
)
from brokerd.spark.small_tables import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spans of time are joined with moments by the equal pieces of time that they touch, instead of comparing all with all.
# The pieces of a span, 2 ** grain ns, are about as long as itself, so that it touches few of them: a damaged event may
# have any time, and a message may wait for years.
GRAIN = """cast(least(62, greatest(36, ceil(log2(greatest(
               1, cast({until} AS double) - cast({since} AS double)))))) AS int)"""
PIECES = "explode(sequence(shiftright({since}, grain), shiftright({until}, grain))) AS piece"
FOREVER = (1 << 63) - 1

GROUPS = {"routing-key": "m.routing_key"}   # what messages can be grouped by -> its column

# --- tables that several rules read

# The highest delivery limit in force in each message's life, and how often it was handed out and failed. A delivery
# that was out when a broker's life ended has failed: the next start counts it. Deliveries count since the last loss of
# power before the message's last one. doubtful: kill -9 may have come between a redelivery and its entry in the acks.
OUT_AT_THE_END = "delivers AND life_end IS NOT NULL AND (after_life IS NULL OR after_life > life)"
LIMITED = f"""
    WITH limits AS (
        SELECT l.vhost, l.queue, l.priority, l.segment, l.seq,
               max(CASE WHEN s.stops THEN {{forever}} ELSE coalesce(s.delivery_limit, {{forever}}) END) AS bound
        FROM lifecycle l JOIN settings s ON s.vhost = l.vhost AND s.queue = l.queue
         AND l.published < s.until AND coalesce(l.settled, {{forever}}) >= s.since
        GROUP BY ALL),
    outs AS (
        SELECT vhost, queue, priority, segment, seq, count_if(delivers AND cuts = era) AS handed,
               count_if({OUT_AT_THE_END}) AS cut, max(CASE WHEN {OUT_AT_THE_END} AND redelivered THEN 1 ELSE 0 END)
                   AS doubtful
        FROM (SELECT *, max(CASE WHEN delivers THEN cuts END) OVER (
                  PARTITION BY vhost, queue, priority, segment, seq) AS era FROM steps)
        GROUP BY ALL)
    SELECT l.*, least({{limit}}, m.bound) AS bound, coalesce(o.handed, 0) AS handed, coalesce(o.cut, 0) AS cut,
           l.returns + coalesce(o.cut, 0) AS failed, coalesce(o.doubtful, 0) AS doubtful
    FROM lifecycle l
    JOIN limits m USING (vhost, queue, priority, segment, seq)
    LEFT JOIN outs o USING (vhost, queue, priority, segment, seq)
    WHERE least({{limit}}, m.bound) < {{forever}}"""


# When the files were copied or, if nothing says so, the time of the last record or event in them.
ENDS = """
    SELECT vhost, queue, coalesce(q.cut, last) AS now FROM queues q
    JOIN (SELECT vhost, queue, max(ts) AS last
          FROM (SELECT vhost, queue, ts FROM messages WHERE sound UNION ALL SELECT vhost, queue, ts FROM steps)
          GROUP BY ALL) USING (vhost, queue)"""


class Check(NamedTuple):
    """One audit: a query for its findings, a query for its cases (vhost, queue, checked), and what it needs."""

    found: str
    checked: str
    needs: str = "events"       # events: undecidable if the journal misses some; records: the messages are enough


PUBLISH_ORDER = Check(
    # Within one channel, the number of the publish rises from message to message.
    found="""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('publish %d of connection %d comes behind %d', publish_seq, connection, earlier) AS detail
    FROM (SELECT *, max(publish_seq) OVER (
              PARTITION BY vhost, queue, priority, connection, channel ORDER BY segment, position
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
          FROM messages WHERE sound AND connection > 0)
    WHERE publish_seq <= earlier""",
    checked="SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound AND connection > 0 GROUP BY ALL",
    needs="records")

FIFO = Check(
    # A message's first delivery is later than that of every earlier message. Two steps keep each window within a
    # segment: first the latest delivery of all earlier segments, then the latest earlier one within the segment.
    # A message of which neither journal nor acks say anything is before all that were delivered. A queue without a dead
    # letter exchange has no reason to set a message aside and leave it there.
    found="""
    WITH sure AS (
        SELECT f.* FROM firsts f LEFT ANTI JOIN in_groups g ON g.vhost = f.vhost AND g.queue = f.queue WHERE f.sure),
    before AS (
        SELECT vhost, queue, priority, segment, max(max(first)) OVER (
            PARTITION BY vhost, queue, priority ORDER BY segment
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
        FROM sure GROUP BY vhost, queue, priority, segment),
    latest AS (
        SELECT s.*, greatest(b.latest, max(s.first) OVER (
            PARTITION BY vhost, queue, priority, segment ORDER BY s.seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS latest
        FROM sure s JOIN before b USING (vhost, queue, priority, segment)),
    tops AS (SELECT vhost, queue, priority, segment, max(seq) AS top FROM sure GROUP BY ALL),
    passed AS (
        SELECT s.vhost, s.queue, s.priority, s.segment, max(t.top) OVER (
            PARTITION BY s.vhost, s.queue, s.priority ORDER BY s.segment
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS top
        FROM segments s LEFT JOIN tops t USING (vhost, queue, priority, segment))
    SELECT vhost, queue, priority, seq, segment, first AS ts, 1L AS weight,
           format_string('first delivered at %d ns, before an earlier one, at %d', first, latest) AS detail
    FROM latest WHERE first < latest
    UNION ALL
    SELECT l.vhost, l.queue, l.priority, l.seq, l.segment, l.published, 1L,
           format_string('never delivered, though %d, a later one of its level, was', p.top)
    FROM lifecycle l JOIN passed p USING (vhost, queue, priority, segment)
    LEFT JOIN may_set_aside d ON d.vhost = l.vhost AND d.queue = l.queue
    LEFT ANTI JOIN acks a ON a.vhost = l.vhost AND a.queue = l.queue AND a.priority = l.priority
     AND a.segment = l.segment AND a.seq = l.seq AND (a.type NOT IN ('set aside', 'parked') OR d.queue IS NOT NULL)
    WHERE l.covered AND l.deliveries = 0 AND l.ended = 'ready' AND l.seq < p.top""",
    checked="SELECT vhost, queue, count(*) AS checked FROM firsts WHERE sure GROUP BY ALL")

RETURNED_FIRST = Check(
    # While a returned message waits, no later one is delivered.
    found=f"""
    WITH last AS (SELECT vhost, queue, max(ts) AS last FROM steps GROUP BY ALL),
    spans AS (
        SELECT *, {GRAIN.format(since="since", until="stop")} AS grain
        FROM (SELECT w.*, least(coalesce(w.until, l.last), l.last) AS stop
              FROM (SELECT w.* FROM waits w LEFT ANTI JOIN in_groups g ON g.vhost = w.vhost AND g.queue = w.queue) w
              JOIN last l USING (vhost, queue))
        WHERE since <= stop),
    waits_by_piece AS (SELECT *, {PIECES.format(since="since", until="stop")} FROM spans)
    SELECT w.vhost, w.queue, w.priority, w.seq, w.segment, w.ts, 1L AS weight,
           format_string('%d later ones were delivered before it was, though it had returned at %d ns',
                         count(*), w.since) AS detail
    FROM waits_by_piece w
    JOIN (SELECT s.*, g.grain, shiftright(s.ts, g.grain) AS piece
          FROM steps s JOIN (SELECT DISTINCT vhost, queue, grain FROM spans) g USING (vhost, queue) WHERE delivers) d
      ON d.vhost = w.vhost AND d.queue = w.queue AND d.priority = w.priority AND d.grain = w.grain AND d.piece = w.piece
     AND struct(d.segment, d.seq) > struct(w.segment, w.seq) AND d.ts > w.since AND d.ts < coalesce(w.until, {FOREVER})
    GROUP BY w.vhost, w.queue, w.priority, w.seq, w.segment, w.ts, w.since""",
    checked="SELECT vhost, queue, count(*) AS checked FROM waits GROUP BY ALL")

AGAIN = "delivers AND ts > head.ts AND (covered OR NOT head.doubtful) AND NOT before_start"

OVERTAKING = Check(
    # A message is delivered again in the same life of the broker: how many later ones went out for the first time
    # after its own first delivery?
    found=f"""
    WITH spans AS (SELECT *, {GRAIN.format(since="head.ts", until="ts")} AS grain FROM steps WHERE {AGAIN}),
    again AS (SELECT *, {PIECES.format(since="head.ts", until="ts")} FROM spans),
    heads AS (
        SELECT s.*, g.grain, shiftright(s.ts, g.grain) AS piece
        FROM steps s JOIN (SELECT DISTINCT vhost, queue, grain FROM spans) g USING (vhost, queue)
        WHERE delivers AND ts = head.ts AND (covered OR NOT head.doubtful))
    SELECT a.vhost, a.queue, a.priority, a.seq, a.segment, a.ts, count(*) AS weight,
           format_string('delivered again, after %d later ones that went out since its first delivery at %d ns',
                         count(*), a.head.ts) AS detail
    FROM again a
    JOIN heads h ON h.vhost = a.vhost AND h.queue = a.queue AND h.priority = a.priority
     AND CASE WHEN h.segment = a.segment THEN h.life = a.life ELSE h.queue_life = a.queue_life END
     AND h.grain = a.grain AND h.piece = a.piece AND struct(h.segment, h.seq) > struct(a.segment, a.seq)
     AND h.ts > a.head.ts AND h.ts < a.ts
    GROUP BY a.vhost, a.queue, a.priority, a.seq, a.segment, a.ts, a.head""",
    checked=f"SELECT vhost, queue, count(*) AS checked FROM steps WHERE {AGAIN} GROUP BY ALL")

# A row for each time at which a level gets one ready message more or less. A message is ready from its publish or
# return until it is delivered or removed by the broker. Messages that are settled otherwise are left out.
READY = """
    WITH stretches AS (
        SELECT vhost, queue, priority, published AS since, ts AS until FROM steps
        WHERE before IS NULL AND covered AND published IS NOT NULL
          AND type IN ('delivered', 'expired', 'dropped', 'purged')
        UNION ALL
        SELECT l.vhost, l.queue, l.priority, l.published, NULL FROM lifecycle l
        LEFT ANTI JOIN steps s ON s.vhost = l.vhost AND s.queue = l.queue AND s.priority = l.priority
         AND s.segment = l.segment AND s.seq = l.seq
        LEFT ANTI JOIN dead_lettering d ON d.vhost = l.vhost AND d.queue = l.queue
        WHERE l.covered
        UNION ALL
        SELECT b.vhost, b.queue, b.priority, b.since, b.after_ts
        FROM back b LEFT JOIN dead_lettering d ON d.vhost = b.vhost AND d.queue = b.queue
        WHERE b.covered AND (b.after IN ('delivered', 'expired', 'dropped', 'purged')
                             OR (b.after IS NULL AND d.queue IS NULL)))
    SELECT vhost, queue, priority, since AS ts, 1L AS more FROM stretches
    UNION ALL SELECT vhost, queue, priority, until, -1L FROM stretches WHERE until IS NOT NULL"""

PRIORITY = Check(
    # At each delivery of a level, the number of ready messages at higher levels, summed up over time, is 0.
    found="""
    WITH levels AS (SELECT DISTINCT vhost, queue, priority FROM messages),
    moves AS (
        SELECT l.vhost, l.queue, l.priority, r.ts, r.more, NULL AS seq, NULL AS segment
        FROM levels l JOIN ready r ON r.vhost = l.vhost AND r.queue = l.queue AND r.priority > l.priority
        UNION ALL
        SELECT vhost, queue, priority, ts, 0L, seq, segment FROM steps WHERE delivers),
    sums AS (SELECT *, sum(more) OVER (PARTITION BY vhost, queue, priority ORDER BY ts) AS above FROM moves)
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('delivered while %d of a higher priority were ready', above) AS detail
    FROM sums WHERE seq IS NOT NULL AND above > 0""",
    checked="""
    SELECT vhost, queue, count(*) AS checked FROM steps
    WHERE delivers AND (vhost, queue) IN (SELECT vhost, queue FROM messages GROUP BY ALL HAVING max(priority) > 0)
    GROUP BY ALL""")

DELIVERY_LIMIT = Check(
    # A limit of N allows N failed deliveries, and so N+1 deliveries.
    found="""
    SELECT vhost, queue, priority, seq, segment, last_delivered AS ts, 1L AS weight,
           format_string('%d deliveries, with a limit of %d', handed, bound) AS detail
    FROM limited WHERE handed > bound + 1 + doubtful""",
    checked="SELECT vhost, queue, count(*) AS checked FROM limited GROUP BY ALL")

LIMIT_KEPT = Check(
    # A message that failed more often than its limit is soon dead-lettered or dropped; if it was out when a broker's
    # life ended, when its turn comes.
    found="""
    SELECT vhost, queue, priority, seq, segment, last_delivered AS ts, 1L AS weight,
           format_string('failed %d times, with a limit of %d, and went on', failed, bound) AS detail
    FROM limited l JOIN ends e USING (vhost, queue)
    WHERE covered AND failed > bound AND ended NOT IN ('dead-lettered', 'dropped')
      AND CASE WHEN ended = 'ready' THEN cut = 0 AND last_delivered < now - {unacked_after}
               ELSE failed - doubtful > bound END""",
    checked="SELECT vhost, queue, count(*) AS checked FROM limited GROUP BY ALL")

BY_CLIENT = """(type IN ('acked', 'rejected') OR (type = 'dead-lettered' AND reason = 'rejected'))
    AND covered AND ts <= done"""

ACK_WITHOUT_DELIVERY = Check(
    # A message that a client settles is with a client at that time.
    found=f"""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight, 'settled by a client that did not have it' AS detail
    FROM steps WHERE {BY_CLIENT} AND NOT out""",
    checked=f"SELECT vhost, queue, count(*) AS checked FROM steps WHERE {BY_CLIENT} GROUP BY ALL")

DOUBLE_SETTLE = Check(
    found=f"""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('settled again; it was, at %d ns', done) AS detail
    FROM steps WHERE settles AND ts > done AND NOT excused
    UNION ALL
    SELECT vhost, queue, priority, seq, segment, ts, weight, detail FROM ({agreement.SETTLED_TWICE})""",
    checked="""
    SELECT vhost, queue, count(DISTINCT priority, segment, seq) AS checked FROM (
        SELECT vhost, queue, priority, segment, seq FROM lifecycle WHERE ended NOT IN ('ready', 'unacked')
        UNION ALL SELECT vhost, queue, priority, segment, seq FROM steps WHERE settles)
    GROUP BY ALL""")

DELIVERY_AFTER_SETTLE = Check(
    found="""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('delivered, though it was settled at %d ns', done) AS detail
    FROM steps WHERE delivers AND ts > done AND NOT excused""",
    checked="SELECT vhost, queue, count(*) AS checked FROM steps WHERE delivers GROUP BY ALL")

AGREEMENT = Check(agreement.FOUND, agreement.CHECKED)

UNACKED = Check(
    found="""
    SELECT vhost, queue, priority, seq, segment, last_delivered AS ts, 1L AS weight,
           format_string('unacked for %d s', (now - last_delivered) div 1000000000) AS detail
    FROM lifecycle JOIN ends USING (vhost, queue)
    WHERE ended = 'unacked' AND last_delivered < now - {unacked_after}""",
    checked="SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound GROUP BY ALL")

DUPLICATES = Check(
    # The same message-id within the window.
    found="""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('its message-id was that of %d before', former) AS detail
    FROM (SELECT *, lag(ts) OVER same AS former_ts, lag(seq) OVER same AS former
          FROM messages WHERE sound AND message_id <> ''
          WINDOW same AS (PARTITION BY vhost, queue, message_id ORDER BY ts))
    WHERE ts - former_ts <= {duplicate_window}""",
    checked="SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound AND message_id <> '' GROUP BY ALL",
    needs="records")

GROUP_FIFO = Check(
    # In a group, a message is delivered once all earlier ones are settled.
    found="""
    WITH grouped AS (
        SELECT l.*, f.first, {group_by} AS grouped FROM lifecycle l
        JOIN messages m USING (vhost, queue, priority, segment, seq)
        LEFT JOIN firsts f USING (vhost, queue, priority, segment, seq)
        WHERE l.covered AND {group_by} IS NOT NULL),
    latest AS (
        SELECT *, max(coalesce(settled, {forever})) OVER (
            PARTITION BY vhost, queue, priority, grouped ORDER BY segment, seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
        FROM grouped)
    SELECT vhost, queue, priority, seq, segment, first AS ts, 1L AS weight,
           'first delivered before all earlier ones of its group were settled' AS detail
    FROM latest WHERE first < latest""",
    checked="""
    SELECT vhost, queue, count(*) AS checked
    FROM lifecycle l JOIN messages m USING (vhost, queue, priority, segment, seq)
    WHERE covered AND {group_by} IS NOT NULL GROUP BY ALL""")

HOLES = Check(missing.FOUND, missing.CHECKED, needs="")

DAMAGE = Check(missing.DAMAGE, missing.DAMAGE_CHECKED, needs="")

CHECKS = {
    "publish_order": PUBLISH_ORDER, "fifo": FIFO, "returned_first": RETURNED_FIRST, "overtaking": OVERTAKING,
    "priority": PRIORITY, "delivery_limit": DELIVERY_LIMIT, "limit_kept": LIMIT_KEPT,
    "ack_without_delivery": ACK_WITHOUT_DELIVERY, "double_settle": DOUBLE_SETTLE,
    "delivery_after_settle": DELIVERY_AFTER_SETTLE, "agreement": AGREEMENT, "unacked": UNACKED,
    "duplicates": DUPLICATES, "holes": HOLES, "damage": DAMAGE, "group_fifo": GROUP_FIFO,
    **{name: Check(*rule) for name, rule in {
        **checks_deliveries.RULES, **checks_places.RULES, **checks_holders.RULES,
        **checks_counts.RULES}.items()},
}


DEFAULTS = Options()
FOUND = "vhost string, queue string, priority int, seq long, segment long, ts long, detail string"
FOUND_COLUMNS = [column.split()[0] for column in FOUND.split(", ")]
VIOLATIONS = ("audit string, vhost string, queue string, priority int, seq long, segment long, file string, "
              "offset long, ts long, detail string")
# Findings of audits, with file and offset of their messages.
WITH_PLACES = """
    SELECT f.audit, f.vhost, f.queue, f.priority, f.seq, f.segment, coalesce(s.file, '') AS file,
           coalesce(m.position, -1L) AS offset, coalesce(f.ts, 0L) AS ts, f.detail
    FROM found f
    LEFT JOIN segments s USING (vhost, queue, priority, segment)
    LEFT JOIN messages m ON m.vhost = f.vhost AND m.queue = f.queue AND m.priority = f.priority
     AND m.segment = f.segment AND m.seq = f.seq"""
# Views that rules use. Each uses only views before it.
HELPERS = {**lives.HELPERS, "limited": LIMITED, "ready": READY, "ends": ENDS, "seen": missing.SEEN,
           "gaps": missing.GAPS, "absent": missing.ABSENT, "wrong": missing.WRONG, "orphans": missing.ORPHANS,
           "entered": agreement.ENTERED, "agreed": agreement.AGREED, **checks_deliveries.HELPERS,
           **checks_places.HELPERS, **checks_holders.HELPERS, "overtaken": OVERTAKING.found, **checks_counts.HELPERS}
REPLAYED = "SELECT DISTINCT vhost, queue FROM segments WHERE again IS NOT NULL"     # queues of replayed messages
TABLES = ("messages", "events", "lifecycle", "segments", "acks")
# Cheap to compute: their rows are not stored.
LIGHT = ("starts", "own_starts", "back", "dead_lettering", "may_set_aside", "in_groups", "ready",
         "ends", "seen", "in_force",
         "placed", "held", "whole", "standing")


def _sql(text: str, options: Options) -> str:
    limit = FOREVER if options.delivery_limit is None else options.delivery_limit
    values = {"forever": FOREVER, "limit": limit, "duplicate_window": int(options.duplicate_window_s * 1e9),
              "overtaking": options.wants("overtaking"), "unacked_after": int(options.unacked_after_s * 1e9),
              "group_by": GROUPS.get(options.group_by or "", "NULL")}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def helpers(spark: "SparkSession", options: Options = DEFAULTS, *, keep: Sequence[str] | None = None) -> None:
    """Make the views that rules use, over those of ``views``.

    ``keep`` are queries: Spark then computes the views that these need now, once, and stores their rows, except those
    of ``LIGHT``. It stores the rows of those of the source's tables that they need too, and their views read the stored
    rows. Without ``keep`` Spark computes nothing yet.
    """
    needed = _needed(keep) if keep is not None else set(HELPERS)
    tables = {name: f"SELECT * FROM {name}" for name in TABLES if name in needed}
    for name, text in {**tables, **{name: text for name, text in HELPERS.items() if name in needed}}.items():
        table = spark.sql(_sql(text, options))
        held = keep is not None and name not in LIGHT
        (table.localCheckpoint() if held else table).createOrReplaceTempView(name)


def _needed(queries: Sequence[str]) -> set[str]:
    """The helpers and tables that these queries read, and those that these helpers read."""
    read = _read(*queries)
    for name, text in reversed(HELPERS.items()):
        if name in read:
            read |= _read(text)
    return read & {*TABLES, *HELPERS}


def _read(*queries: str) -> set[str]:
    """The names of what these queries read.  A column may have the name of a helper."""
    return {name for query in queries for name in re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", query)}


def chosen(options: Options) -> list[str]:
    """The audits that the options ask for and that SQL can judge."""
    return [name for name in CHECKS if options.wants(name) and (name != "group_fifo" or options.group_by in GROUPS)]


def violations(spark: "SparkSession", options: Options = DEFAULTS) -> "DataFrame":
    """Findings of all audits as rows, with file and offset of their messages. Computes them now, and stores the rows.

    Needs the views. Afterwards those of the source's tables that the audits need read stored rows.
    """
    helpers(spark, options, keep=[WITH_PLACES, *(CHECKS[name].found for name in chosen(options))])
    every = spark.createDataFrame([], f"audit string, {FOUND}")
    for name in chosen(options):
        found = spark.sql(f"SELECT * FROM ({_sql(CHECKS[name].found, options)})").localCheckpoint()
        # The audit's name is added only here, because Spark fails to plan a union of bare checkpoints.
        every = every.union(found.selectExpr(f"'{name}' AS audit", *FOUND_COLUMNS))
    every.createOrReplaceTempView("found")
    rows = spark.sql(WITH_PLACES).localCheckpoint()
    for name in ("found", *reversed(HELPERS)):
        spark.catalog.dropTempView(name)
    return rows


# --- verdicts

def run(spark: "SparkSession", path: str, options: Options = DEFAULTS, **source: str) -> list[dict[str, Any]]:
    """Judge every queue at ``path``: rows like those of the audits in ``summary.json``, by queue and audit.

    ``source`` are the source's options (``queues``, ``crc``).  Reads all files once and caches the rows, in memory or
    on the workers' disks, while it runs.  Raises AuditError.
    """
    tables(spark, path, options.wants("damage"), **source)
    names = chosen(options)
    facts = checks_cases.query({name: CHECKS[name].needs for name in names})
    helpers(spark, options, keep=[facts, *(query for name in names for query in CHECKS[name][:2])])
    cases = {(row.vhost, row.queue): row.asDict() for row in spark.sql(facts).collect()}
    found = _counts(spark, "found", names, options, "count(*) AS found, sum(weight) AS weight")
    checked = _counts(spark, "checked", names, options, "sum(checked) AS checked")
    glob = source.get("queues")
    apart = by_arrays.apart(path, glob, {(row[0], row[1]) for row in spark.sql(REPLAYED).collect()})
    for name in reversed(HELPERS):
        spark.catalog.dropTempView(name)
    tables(spark, path, **source)       # New tables release the cached rows.
    rows = []
    for (vhost, queue), case in sorted(cases.items()):
        for name in names:
            if checks_cases.applies(name, case, options) and name not in apart.get((vhost, queue), ()):
                key = (name, vhost, queue)
                some, weight = found.get(key, (0, 0))
                some = weight if name == "holes" else some      # One row may tell of many numbers.
                said = checks_cases.verdict(name, CHECKS[name].needs, case, some)
                rows.append({"vhost": vhost, "queue": queue, "audit": name, "found": some,
                             "checked": checked.get(key, (0,))[0], **said,
                             **({"overtakings": weight} if name == "overtaking" else {})})
    return rows + by_arrays.rows(path, options, glob) + by_arrays.of_queues(path, options, glob, apart)


def _counts(spark: "SparkSession", part: str, names: Sequence[str], options: Options,
            columns: str) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """(audit, vhost, queue) -> sums over the rows of one part of each check.

    Each check has its own query, because Spark takes longer to plan one query for all than to run these.
    """
    counts: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for name in names:
        rows = _sql(getattr(CHECKS[name], part), options)
        for row in spark.sql(f"SELECT vhost, queue, {columns} FROM ({rows}) GROUP BY vhost, queue").collect():
            counts[name, row[0], row[1]] = tuple(row[2:])
    return counts
