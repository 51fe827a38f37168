"""The audits once more, as SQL over the views: ``run`` judges, and ``violations`` makes a table of the findings.

``brokerd.audit`` judges with arrays, in one pass over each segment. This module has the same rules in SQL, which people
can compare with the documentation. Both must agree: same ``found``, same ``overtakings``, same verdict. This one is
slower, because it sorts rows that the other finds in order. It is for tests, and for analysts who change a rule.

Each rule selects its findings: vhost, queue, priority, seq, segment, ts, weight (for overtaking: how many messages
went ahead), detail. Most rules read ``STEPS``: each event with the event before and after it in its message's life.
Times are ns. A broker's *life* is the time between two starts; messages that are out when it ends count as returned.

Does not judge spans of time, nor groups by anything but the routing key, because the tables do not have headers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.audit import many
from brokerd.audit.scan import Options
from brokerd.spark.small_tables import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTE = 60_000_000_000         # ns: spans are joined by the minutes they touch, instead of comparing all with all
FOREVER = (1 << 63) - 1

GROUPS = {"routing-key": "m.routing_key"}   # what messages can be grouped by -> its column

# --- tables that several rules read

# When each life of the broker began, by the queue's journals, and which of them began after a loss of power.
STARTS = """
    SELECT vhost, queue, array_sort(collect_set(ts)) AS starts,
           collect_set(CASE WHEN reason = 'power lost' THEN ts END) AS cuts
    FROM events WHERE type = 'started' AND reason IN ('restarted', 'power lost', 'switched on')
    GROUP BY vhost, queue"""

# Each event with the events before and after it in its message's life.
#   life        how many starts of the broker came before; life_end: when that life ended (null: it is the last)
#   head        the message's first known delivery in that life: its time, and whether an earlier one is possible
#   out         whether the message was with a consumer just before this event
#   covered     whether the journal has its message's whole life
#   known       whether its record exists, or a compaction explains why not
#   cuts        how many losses of power came before
#   done        when the message was first settled; excused: a loss of power since then may have taken that ack
# Events before a message's publish are left out: a message that a power cut took had the same number before.
STEPS = """
    WITH known_events AS (
        SELECT e.vhost, e.queue, e.priority, e.segment, e.seq, e.ts, e.type, e.reason, e.consumer, e.redelivered,
               e.before_start, coalesce(l.covered, g.generation > 0) AS covered, l.published,
               l.seq IS NOT NULL OR g.generation > 0 AS known,
               size(filter(coalesce(s.starts, array()), start -> start < e.ts)) AS life,
               size(filter(coalesce(s.cuts, array()), cut -> cut < e.ts)) AS cuts,
               get(filter(coalesce(s.starts, array()), start -> start > e.ts), 0) AS life_end,
               e.type IN ('acked', 'rejected', 'dead-lettered', 'expired', 'dropped', 'purged') AS settles
        FROM events e
        JOIN segments g ON g.vhost = e.vhost AND g.queue = e.queue AND g.priority = e.priority AND g.segment = e.segment
        LEFT JOIN starts s ON s.vhost = e.vhost AND s.queue = e.queue
        LEFT JOIN lifecycle l ON l.vhost = e.vhost AND l.queue = e.queue AND l.priority = e.priority AND l.seq = e.seq
        WHERE e.type <> 'started' AND NOT (coalesce(size(s.cuts), 0) > 0 AND coalesce(e.ts < l.published, false))),
    marked AS (
        SELECT *, min(CASE WHEN settles THEN struct(ts, cuts) END)
                      OVER (PARTITION BY vhost, queue, priority, seq) AS first_end
        FROM known_events)
    SELECT *, type = 'delivered' AS delivers, first_end.ts AS done, coalesce(cuts > first_end.cuts, false) AS excused,
           lag(type) OVER message AS before, lead(type) OVER message AS after, lead(ts) OVER message AS after_ts,
           lead(life) OVER message AS after_life,
           lag(type) OVER message <=> 'delivered' AND lag(life) OVER message = life AS out,
           min(CASE WHEN type = 'delivered' THEN struct(ts, redelivered AND NOT before_start AS doubtful) END)
               OVER (PARTITION BY vhost, queue, priority, seq, life) AS head
    FROM marked
    WINDOW message AS (PARTITION BY vhost, queue, priority, seq ORDER BY ts)"""

# The first delivery of each message; sure: the journal misses no delivery before it.
FIRSTS = """
    SELECT vhost, queue, priority, seq, min(segment) AS segment, min(ts) AS first,
           bool_or(covered) OR (bool_and(known) AND NOT min_by(redelivered, ts)) AS sure
    FROM steps WHERE delivers GROUP BY vhost, queue, priority, seq"""

# Messages that came back, and when: returned, or out when a broker's life ended (the journal has no event for that).
BACK = """
    SELECT *, ts AS since FROM steps WHERE type = 'returned'
    UNION ALL
    SELECT *, life_end AS since FROM steps
    WHERE delivers AND life_end IS NOT NULL AND (after_life IS NULL OR after_life > life)"""

# The time in which a returned message was ready again; one that is settled without another delivery was not ready.
# With a dead letter exchange, a message that dies at its limit or of age may have no end for a while.
WAITS = """
    SELECT b.vhost, b.queue, b.priority, b.segment, b.seq, b.ts, b.since, b.after_ts AS until
    FROM back b LEFT JOIN dead_lettering d ON d.vhost = b.vhost AND d.queue = b.queue
    WHERE b.covered AND (b.after = 'delivered' OR (b.after IS NULL AND d.queue IS NULL))"""

# Queues that have had a dead letter exchange.
DEAD_LETTERING = "SELECT DISTINCT vhost, queue FROM settings WHERE dead_letters"

# The highest delivery limit in force in each message's life, and its failed deliveries. A delivery that a start of the
# broker cut short did not fail.
LIMITED = """
    WITH limits AS (
        SELECT l.vhost, l.queue, l.priority, l.segment, l.seq, max(coalesce(s.delivery_limit, {forever})) AS bound
        FROM lifecycle l JOIN settings s ON s.vhost = l.vhost AND s.queue = l.queue
         AND l.published < s.until AND coalesce(l.settled, {forever}) >= s.since
        GROUP BY ALL),
    cuts AS (
        SELECT vhost, queue, priority, seq,
               count_if(delivers AND life_end IS NOT NULL AND (after_life IS NULL OR after_life > life)) AS cut
        FROM steps GROUP BY ALL)
    SELECT l.*, least({limit}, m.bound) AS bound, l.deliveries - coalesce(c.cut, 0) AS failed
    FROM lifecycle l
    JOIN limits m USING (vhost, queue, priority, segment, seq)
    LEFT JOIN cuts c USING (vhost, queue, priority, seq)
    WHERE least({limit}, m.bound) < {forever}"""


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
              PARTITION BY vhost, queue, priority, connection, channel ORDER BY seq
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
          FROM messages WHERE sound AND connection > 0)
    WHERE publish_seq <= earlier""",
    checked="SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound AND connection > 0 GROUP BY ALL",
    needs="records")

FIFO = Check(
    # A message's first delivery is later than that of every earlier message. Two steps keep each window within a
    # segment: first the latest delivery of all earlier segments, then the latest earlier one within the segment.
    found="""
    WITH sure AS (SELECT * FROM firsts WHERE sure),
    before AS (
        SELECT vhost, queue, priority, segment, max(max(first)) OVER (
            PARTITION BY vhost, queue, priority ORDER BY segment
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
        FROM sure GROUP BY vhost, queue, priority, segment),
    latest AS (
        SELECT s.*, greatest(b.latest, max(s.first) OVER (
            PARTITION BY vhost, queue, priority, segment ORDER BY s.seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS latest
        FROM sure s JOIN before b USING (vhost, queue, priority, segment))
    SELECT vhost, queue, priority, seq, segment, first AS ts, 1L AS weight,
           format_string('first delivered at %d ns, when a later one had been, at %d', first, latest) AS detail
    FROM latest WHERE first < latest""",
    checked="SELECT vhost, queue, count(*) AS checked FROM firsts WHERE sure GROUP BY ALL")

RETURNED_FIRST = Check(
    # While a returned message waits, no later one is delivered.
    found=f"""
    WITH last AS (SELECT vhost, queue, max(ts) AS last FROM steps GROUP BY ALL),
    waits_by_minute AS (
        SELECT w.*, explode(sequence(w.since div {MINUTE}, least(coalesce(w.until, l.last), l.last) div {MINUTE}))
               AS minute
        FROM waits w JOIN last l USING (vhost, queue) WHERE w.since <= l.last)
    SELECT w.vhost, w.queue, w.priority, w.seq, w.segment, w.ts, 1L AS weight,
           format_string('%d later ones were delivered before it was, though it had returned at %d ns',
                         count(*), w.since) AS detail
    FROM waits_by_minute w
    JOIN (SELECT *, ts div {MINUTE} AS minute FROM steps WHERE delivers) d
      ON d.vhost = w.vhost AND d.queue = w.queue AND d.priority = w.priority AND d.minute = w.minute
     AND d.seq > w.seq AND d.ts > w.since AND d.ts < coalesce(w.until, {FOREVER})
    GROUP BY w.vhost, w.queue, w.priority, w.seq, w.segment, w.ts, w.since""",
    checked="SELECT vhost, queue, count(*) AS checked FROM waits GROUP BY ALL")

AGAIN = "delivers AND ts > head.ts AND (covered OR NOT head.doubtful) AND NOT before_start"

OVERTAKING = Check(
    # A message is delivered again in the same life of the broker: how many later ones went out for the first time
    # after its own first delivery?
    found=f"""
    WITH again AS (
        SELECT *, explode(sequence(head.ts div {MINUTE}, ts div {MINUTE})) AS minute FROM steps WHERE {AGAIN}),
    heads AS (
        SELECT *, ts div {MINUTE} AS minute FROM steps
        WHERE delivers AND ts = head.ts AND (covered OR NOT head.doubtful))
    SELECT a.vhost, a.queue, a.priority, a.seq, a.segment, a.ts, count(*) AS weight,
           format_string('delivered again, after %d later ones that went out since its first delivery at %d ns',
                         count(*), a.head.ts) AS detail
    FROM again a
    JOIN heads h ON h.vhost = a.vhost AND h.queue = a.queue AND h.priority = a.priority AND h.life = a.life
     AND h.minute = a.minute AND h.seq > a.seq AND h.ts > a.head.ts AND h.ts < a.ts
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
        LEFT ANTI JOIN steps s ON s.vhost = l.vhost AND s.queue = l.queue AND s.priority = l.priority AND s.seq = l.seq
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
           format_string('%d deliveries, with a limit of %d', failed, bound) AS detail
    FROM limited WHERE failed > bound + 1""",
    checked="SELECT vhost, queue, count(*) AS checked FROM limited GROUP BY ALL")

LIMIT_KEPT = Check(
    # A message that returned more often than its limit is soon dead-lettered or dropped.
    found="""
    SELECT vhost, queue, priority, seq, segment, last_delivered AS ts, 1L AS weight,
           format_string('returned %d times, with a limit of %d, and went on', returns, bound) AS detail
    FROM limited l JOIN ends e USING (vhost, queue)
    WHERE returns > bound AND ended NOT IN ('dead-lettered', 'dropped')
      AND (ended <> 'ready' OR last_delivered < now - {unacked_after})""",
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
    found="""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('settled again; it was, at %d ns', done) AS detail
    FROM steps WHERE settles AND ts > done AND NOT excused""",
    checked="""
    SELECT vhost, queue, count(DISTINCT priority, seq) AS checked FROM (
        SELECT vhost, queue, priority, seq FROM lifecycle WHERE ended NOT IN ('ready', 'unacked')
        UNION ALL SELECT vhost, queue, priority, seq FROM steps WHERE settles)
    GROUP BY ALL""")

DELIVERY_AFTER_SETTLE = Check(
    found="""
    SELECT vhost, queue, priority, seq, segment, ts, 1L AS weight,
           format_string('delivered, though it was settled at %d ns', done) AS detail
    FROM steps WHERE delivers AND ts > done AND NOT excused""",
    checked="SELECT vhost, queue, count(*) AS checked FROM steps WHERE delivers GROUP BY ALL")

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
        LEFT JOIN firsts f ON f.vhost = l.vhost AND f.queue = l.queue AND f.priority = l.priority AND f.seq = l.seq
        WHERE l.covered AND {group_by} IS NOT NULL),
    latest AS (
        SELECT *, max(coalesce(settled, {forever})) OVER (
            PARTITION BY vhost, queue, priority, grouped ORDER BY seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
        FROM grouped)
    SELECT vhost, queue, priority, seq, segment, first AS ts, 1L AS weight,
           'first delivered before all earlier ones of its group were settled' AS detail
    FROM latest WHERE first < latest""",
    checked="""
    SELECT vhost, queue, count(*) AS checked
    FROM lifecycle l JOIN messages m USING (vhost, queue, priority, segment, seq)
    WHERE covered AND {group_by} IS NOT NULL GROUP BY ALL""")

# The numbers between the first and the last message, over all levels together. The number of a damaged record counts if
# it fits its place. Retention and compaction excuse missing numbers.
SEEN = """
    SELECT m.vhost, m.queue, m.seq FROM messages m JOIN segments s USING (vhost, queue, priority, segment)
    WHERE m.sound OR m.seq BETWEEN s.base_seq AND s.last_seq + 1"""

GAPS = """
    WITH gaps AS (
        SELECT vhost, queue, seq + 1 AS from_seq, lead(seq) OVER (PARTITION BY vhost, queue ORDER BY seq) - 1 AS to_seq
        FROM seen)
    SELECT g.*, NOT EXISTS (
               SELECT 1 FROM segments s WHERE s.vhost = g.vhost AND s.queue = g.queue AND s.begun IS NOT NULL)
           AS unknown
    FROM gaps g WHERE g.from_seq <= g.to_seq"""

# Missing numbers without an explanation; lost: their messages, perhaps never confirmed, came before a loss of power.
ABSENT = """
    WITH excused AS (
        SELECT vhost, queue, first_seq AS from_seq, last_seq AS to_seq FROM removals
        UNION ALL
        SELECT vhost, queue, base_seq, last_seq FROM segments WHERE generation > 0),
    missing AS (
        SELECT vhost, queue, explode(sequence(from_seq, to_seq)) AS seq FROM gaps WHERE NOT unknown),
    since AS (
        SELECT s.vhost, s.queue, coalesce(min(CASE WHEN m.ts > array_max(s.cuts) THEN m.seq END), {forever}) AS since
        FROM starts s JOIN messages m ON m.sound AND m.vhost = s.vhost AND m.queue = s.queue
        WHERE size(s.cuts) > 0 GROUP BY ALL)
    SELECT m.*, coalesce(m.seq < p.since, false) AS lost
    FROM missing m LEFT JOIN since p ON p.vhost = m.vhost AND p.queue = m.queue
    LEFT ANTI JOIN excused e ON e.vhost = m.vhost AND e.queue = m.queue AND m.seq BETWEEN e.from_seq AND e.to_seq"""

HOLES = Check(
    found="""
    SELECT vhost, queue, 0 AS priority, seq, 0L AS segment, 0L AS ts, 1L AS weight,
           format_string('%d is missing', seq) AS detail
    FROM absent WHERE NOT lost""",
    checked="SELECT vhost, queue, max(seq) - min(seq) + 1 AS checked FROM seen GROUP BY ALL",
    needs="")

# The damage of each file; what: the kind of the file.
WRONG = """
    SELECT vhost, queue, priority, segment, split(detail, '[.]')[0] AS what, detail
    FROM (SELECT *, explode(split(damage, '; ')) AS detail FROM segments WHERE damage IS NOT NULL)
    UNION ALL SELECT vhost, queue, 0, 0L, what, detail FROM queue_damage"""

DAMAGE = Check(
    # An event of a message that is not in its segment counts too, unless a compaction or a damaged segment explains it.
    found="""
    SELECT vhost, queue, priority, 0L AS seq, segment, 0L AS ts, 1L AS weight, detail FROM wrong
    UNION ALL
    SELECT e.vhost, e.queue, e.priority, e.seq, e.segment, e.ts, 1L, 'an event of a message that is not in the segment'
    FROM events e JOIN segments s USING (vhost, queue, priority, segment)
    LEFT ANTI JOIN messages m ON m.sound AND m.vhost = e.vhost AND m.queue = e.queue AND m.priority = e.priority
     AND m.segment = e.segment AND m.seq = e.seq
    WHERE e.type <> 'started' AND s.generation = 0 AND coalesce(s.damage, '') NOT LIKE '%msgs.%'""",
    checked="""
    SELECT vhost, queue, sum(checked) AS checked FROM (
        SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound GROUP BY ALL
        UNION ALL SELECT vhost, queue, count(*) FROM events WHERE type <> 'started' GROUP BY ALL)
    GROUP BY ALL""",
    needs="")

CHECKS = {
    "publish_order": PUBLISH_ORDER, "fifo": FIFO, "returned_first": RETURNED_FIRST, "overtaking": OVERTAKING,
    "priority": PRIORITY, "delivery_limit": DELIVERY_LIMIT, "limit_kept": LIMIT_KEPT,
    "ack_without_delivery": ACK_WITHOUT_DELIVERY, "double_settle": DOUBLE_SETTLE,
    "delivery_after_settle": DELIVERY_AFTER_SETTLE, "unacked": UNACKED, "duplicates": DUPLICATES, "holes": HOLES,
    "damage": DAMAGE, "group_fifo": GROUP_FIFO,
}


DEFAULTS = Options()
FOUND = "vhost string, queue string, priority int, seq long, segment long, ts long, detail string"
FOUND_COLUMNS = [column.split()[0] for column in FOUND.split(", ")]
VIOLATIONS = ("audit string, vhost string, queue string, priority int, seq long, segment long, file string, "
              "offset long, ts long, detail string")
# Views that rules use. Each uses only views before it.
HELPERS = {"starts": STARTS, "steps": STEPS, "firsts": FIRSTS, "back": BACK,
           "dead_lettering": DEAD_LETTERING, "waits": WAITS,
           "limited": LIMITED, "ready": READY, "ends": ENDS, "seen": SEEN, "gaps": GAPS, "absent": ABSENT,
           "wrong": WRONG}
TABLES = ("messages", "events", "lifecycle", "segments")
LIGHT = ("starts", "back", "dead_lettering", "ready", "ends", "seen")    # cheap to compute: their rows are not stored


def _sql(text: str, options: Options) -> str:
    limit = FOREVER if options.delivery_limit is None else options.delivery_limit
    values = {"forever": FOREVER, "limit": limit, "duplicate_window": int(options.duplicate_window_s * 1e9),
              "unacked_after": int(options.unacked_after_s * 1e9),
              "group_by": GROUPS.get(options.group_by or "", "NULL")}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def helpers(spark: "SparkSession", options: Options = DEFAULTS, *, keep: Sequence[str] | None = None) -> None:
    """Make the views that rules use, over those of ``views``.

    ``keep`` names audits: Spark then computes the views that these need now, once, and stores their rows, except those
    of ``LIGHT``. It stores the rows of the source's tables too, and their views read the stored rows. Without ``keep``
    Spark computes nothing yet.
    """
    needed = _needed(keep) if keep is not None else set(HELPERS)
    tables = {name: f"SELECT * FROM {name}" for name in TABLES} if keep is not None else {}
    for name, text in {**tables, **{name: text for name, text in HELPERS.items() if name in needed}}.items():
        table = spark.sql(_sql(text, options))
        held = keep is not None and name not in LIGHT
        (table.localCheckpoint() if held else table).createOrReplaceTempView(name)


def _needed(audits: Sequence[str]) -> set[str]:
    """The helpers that the rules of these audits name, and the helpers that those name."""
    texts = [CASES, *(CHECKS[name].found + CHECKS[name].checked for name in audits)]
    words = set(re.findall(r"\w+", " ".join(texts)))
    for name, text in reversed(HELPERS.items()):
        if name in words:
            words |= set(re.findall(r"\w+", text))
    return words & set(HELPERS)


def chosen(options: Options) -> list[str]:
    """The audits that the options ask for and that SQL can judge."""
    return [name for name in CHECKS if options.wants(name) and (name != "group_fifo" or options.group_by in GROUPS)]


def violations(spark: "SparkSession", options: Options = DEFAULTS) -> "DataFrame":
    """Findings of all audits as rows, with file and offset of their messages. Computes them now, and stores the rows.

    Needs the views. Afterwards the views of the source's tables read stored rows.
    """
    helpers(spark, options, keep=chosen(options))
    every = spark.createDataFrame([], f"audit string, {FOUND}")
    for name in chosen(options):
        found = spark.sql(f"SELECT * FROM ({_sql(CHECKS[name].found, options)})").localCheckpoint()
        # The audit's name is added only here, because Spark fails to plan a union of bare checkpoints.
        every = every.union(found.selectExpr(f"'{name}' AS audit", *FOUND_COLUMNS))
    every.createOrReplaceTempView("found")
    rows = spark.sql("""
        SELECT f.audit, f.vhost, f.queue, f.priority, f.seq, f.segment, coalesce(s.file, '') AS file,
               coalesce(m.position, -1L) AS offset, coalesce(f.ts, 0L) AS ts, f.detail
        FROM found f
        LEFT JOIN segments s USING (vhost, queue, priority, segment)
        LEFT JOIN messages m ON m.vhost = f.vhost AND m.queue = f.queue AND m.priority = f.priority
         AND m.segment = f.segment AND m.seq = f.seq""").localCheckpoint()
    for name in ("found", *reversed(HELPERS)):
        spark.catalog.dropTempView(name)
    return rows


# --- verdicts

# Audits in which a loss of power excuses findings, and the column of CASES that says whether it excused any.
OVER_POWER_CUTS = {"delivery_after_settle": "delivered_again", "double_settle": "settled_again", "holes": "lost"}

# For each queue: messages that the journal does not cover, kinds of damaged files, facts from its settings.
CASES = """
    SELECT q.vhost, q.queue, coalesce(l.uncovered, 0L) AS uncovered, coalesce(l.unsure, 0L) AS unsure,
           coalesce(l.partly, 0L) AS partly,
           coalesce(w.spoiled, array()) AS spoiled, coalesce(g.unknown, false) AS unknown_gaps,
           coalesce(a.lost, false) AS lost, coalesce(x.delivered, false) AS delivered_again,
           coalesce(x.settled, false) AS settled_again,
           q.levels > 1 OR coalesce(q.max_priority, 0) > 0 AS has_levels, coalesce(s.has_limit, false) AS has_limit
    FROM queues q
    LEFT JOIN (SELECT l.vhost, l.queue, count_if(NOT covered) AS uncovered,
                      count_if(NOT covered AND NOT coalesce(f.sure, false)) AS unsure,
                      count_if(NOT covered AND s.begun IS NOT NULL) AS partly
               FROM lifecycle l JOIN segments s USING (vhost, queue, priority, segment)
               LEFT JOIN firsts f
                 ON f.vhost = l.vhost AND f.queue = l.queue AND f.priority = l.priority AND f.seq = l.seq
               GROUP BY ALL) l USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, collect_set(what) AS spoiled FROM wrong GROUP BY ALL) w USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, bool_or(unknown) AS unknown FROM gaps GROUP BY ALL) g USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, bool_or(lost) AS lost FROM absent GROUP BY ALL) a USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, bool_or(delivers) AS delivered, bool_or(settles) AS settled
               FROM steps WHERE ts > done AND excused GROUP BY ALL) x USING (vhost, queue)
    LEFT JOIN (SELECT vhost, queue, bool_or(delivery_limit IS NOT NULL) AS has_limit FROM settings GROUP BY ALL) s
        USING (vhost, queue)"""


def run(spark: "SparkSession", path: str, options: Options = DEFAULTS, **source: str) -> list[dict[str, Any]]:
    """Judge every queue at ``path``: rows like those of the audits in ``summary.json``, by queue and audit.

    ``source`` are the source's options (``queues``, ``crc``).  Reads all files once and caches the rows, in memory or
    on the workers' disks, while it runs.  Raises AuditError.
    """
    tables(spark, path, **source)
    names = chosen(options)
    helpers(spark, options, keep=names)
    cases = {(row.vhost, row.queue): row.asDict() for row in spark.sql(CASES).collect()}
    found = _counts(spark, "found", names, options, "count(*) AS found, sum(weight) AS weight")
    checked = _counts(spark, "checked", names, options, "sum(checked) AS checked")
    for name in reversed(HELPERS):
        spark.catalog.dropTempView(name)
    tables(spark, path, **source)       # New tables release the cached rows.
    rows = []
    for (vhost, queue), case in sorted(cases.items()):
        for name in names:
            if _applies(name, case, options):
                key = (name, vhost, queue)
                some, weight = found.get(key, (0, 0))
                rows.append({"vhost": vhost, "queue": queue, "audit": name, "found": some,
                             "checked": checked.get(key, (0,))[0], **_verdict(name, case, some),
                             **({"overtakings": weight} if name == "overtaking" else {})})
    return rows


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


def _applies(audit: str, case: Mapping[str, Any], options: Options) -> bool:
    """Whether this audit can say anything about a queue."""
    if audit == "priority":
        return bool(case["has_levels"])
    if audit in ("delivery_limit", "limit_kept"):
        return options.delivery_limit is not None or bool(case["has_limit"])
    return True


def _verdict(audit: str, case: Mapping[str, Any], found: int) -> dict[str, str]:
    """violated with findings; undecidable without findings if some cases could not be judged; else held."""
    doubts, spoiled, needs = [], set(case["spoiled"]), CHECKS[audit].needs
    # Without a journal, the acks show a message that was settled twice, and some first deliveries are known.
    if needs == "events" and case[{"fifo": "unsure", "double_settle": "partly"}.get(audit, "uncovered")]:
        doubts.append(f"no order journal covers the whole life of {many(case['uncovered'], 'message')}")
    if case.get(OVER_POWER_CUTS.get(audit, "")):
        doubts.append("power was lost")
    if (needs and "msgs" in spoiled) or (needs == "events" and "journal" in spoiled):
        doubts.append("files are missing or damaged")
    if audit == "double_settle" and "acks" in spoiled:
        doubts.append("acks are missing or damaged")
    if audit == "holes" and "msgs" in spoiled:
        doubts.append("records are missing or damaged")
    if audit == "holes" and case["unknown_gaps"]:
        doubts.append("without a journal, settled messages leave no trace")
    if found:
        return {"verdict": "violated", "reason": f"{found} found"}
    return {"verdict": "undecidable" if doubts else "held", "reason": "; ".join(doubts)}
