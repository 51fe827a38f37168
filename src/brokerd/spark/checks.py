"""The audits once more, as SQL over the views: ``run`` judges, ``violations`` is the findings as a table.

``brokerd.audit`` judges with arrays, one pass over each segment. This is the same said in another language, by rules
that can be read beside the documentation, so that either can be held against the other: same ``found``, same
``overtakings``, same verdict. It is slower (it sorts what the other has in order) and is for analysts who change a
rule, and for tests.

Each rule selects its findings: vhost, queue, priority, seq, segment, ts, weight (of overtaking: how many went
ahead), detail. ``STEPS`` is what most of them stand on: events with what came before and after in their message's
life. Times are ns. A broker's *life* is the time between two starts; what is out when it ends counts as returned.

Not judged here: groups by anything but the routing key (the tables do not have headers), spans of time.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.audit.scan import Options
from brokerd.spark.small_tables import tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MINUTE = 60_000_000_000         # ns: spans of time are met by the minutes they touch, not by comparing all with all
FOREVER = (1 << 63) - 1

GROUPS = {"routing-key": "m.routing_key"}   # what messages can be grouped by -> its column

# --- what the rules stand on

# When each life of the broker began, as far as the queue's journals know, and which came after a loss of power.
STARTS = """
    SELECT vhost, queue, array_sort(collect_set(ts)) AS starts,
           collect_set(CASE WHEN reason = 'power lost' THEN ts END) AS cuts
    FROM events WHERE type = 'started' AND reason IN ('restarted', 'power lost', 'switched on')
    GROUP BY vhost, queue"""

# Each event with what came before and after it in its message's life.
#   life        how many starts of the broker were before; life_end: when it ended (null: it is the last)
#   head        the message's first known delivery of that life: when, and whether it may not have been the first
#   out         whether the message was with a consumer just before this event
#   covered     whether the journal has its message's whole life
#   known       whether there is its record, or compaction explains that there is none
#   cuts        how many losses of power were before
#   done        when the message was settled, first; excused: power was lost since then, and with it perhaps that ack
# Before a message was published nothing happened to it: such events are of one that was lost, whose number it got.
STEPS = """
    WITH told AS (
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
        FROM told)
    SELECT *, type = 'delivered' AS delivers, first_end.ts AS done, coalesce(cuts > first_end.cuts, false) AS excused,
           lag(type) OVER message AS before, lead(type) OVER message AS after, lead(ts) OVER message AS after_ts,
           lead(life) OVER message AS after_life,
           lag(type) OVER message <=> 'delivered' AND lag(life) OVER message = life AS out,
           min(CASE WHEN type = 'delivered' THEN struct(ts, redelivered AND NOT before_start AS doubtful) END)
               OVER (PARTITION BY vhost, queue, priority, seq, life) AS head
    FROM marked
    WINDOW message AS (PARTITION BY vhost, queue, priority, seq ORDER BY ts)"""

# The first delivery of each message; sure: there was none before it that the journal does not know.
FIRSTS = """
    SELECT vhost, queue, priority, seq, min(segment) AS segment, min(ts) AS first,
           bool_or(covered) OR (bool_and(known) AND NOT min_by(redelivered, ts)) AS sure
    FROM steps WHERE delivers GROUP BY vhost, queue, priority, seq"""

# Messages that came back, and when: returned, or out when a broker's life ended, which returns them without an event.
BACK = """
    SELECT *, ts AS since FROM steps WHERE type = 'returned'
    UNION ALL
    SELECT *, life_end AS since FROM steps
    WHERE delivers AND life_end IS NOT NULL AND (after_life IS NULL OR after_life > life)"""

# From when to when a returned message was ready again. One that is settled without being delivered was not.
# What died at its limit, or of age, may stay for a while with no end where a dead letter exchange takes it.
WAITS = """
    SELECT b.vhost, b.queue, b.priority, b.segment, b.seq, b.ts, b.since, b.after_ts AS until
    FROM back b LEFT JOIN dead_lettering d ON d.vhost = b.vhost AND d.queue = b.queue
    WHERE b.covered AND (b.after = 'delivered' OR (b.after IS NULL AND d.queue IS NULL))"""

# Queues that have had a dead letter exchange.
DEAD_LETTERING = "SELECT DISTINCT vhost, queue FROM settings WHERE dead_letters"

# The highest delivery limit in force in each message's life, and what it went through. Deliveries that a start of
# the broker cut short did not fail.
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


# When the files were taken or, where nothing says so, when the last thing happened that they tell of.
ENDS = """
    SELECT vhost, queue, coalesce(q.cut, last) AS now FROM queues q
    JOIN (SELECT vhost, queue, max(ts) AS last
          FROM (SELECT vhost, queue, ts FROM messages WHERE sound UNION ALL SELECT vhost, queue, ts FROM steps)
          GROUP BY ALL) USING (vhost, queue)"""


class Check(NamedTuple):
    """One audit: rows of its findings, rows of what it looked at (vhost, queue, checked), and what it stands on."""

    found: str
    checked: str
    needs: str = "events"       # events: undecidable where the journal has not all; records: the messages tell


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
    # A message's first delivery is later than that of every earlier one. In two steps, so that no window is larger
    # than a segment: the latest of all segments before, then the latest before within the segment.
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
    # since it did?
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

# One more or one less that is ready at its level. Ready is a message from when it was enqueued, or came back, to when
# it is delivered, or gone without being asked for; of a message that is settled otherwise, nothing is known.
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
    # For each level: what is ready above it, summed up over time, is none at each of its deliveries.
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
    # What returned more often than the limit ends dead-lettered or dropped, and soon.
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
    # What a client settles is out with it at that time.
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

# Numbers that are missing between the first message kept and the last, all levels together; those of a damaged record
# are there if they fit where it stands. Excused is what retention took away and what compaction left out.
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

# Numbers that nothing explains; lost: of messages published before a loss of power, perhaps promised to nobody.
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

# What is not as a broker leaves it, file by file; what: of which kind the file is.
WRONG = """
    SELECT vhost, queue, priority, segment, split(told, '[.]')[0] AS what, told
    FROM (SELECT *, explode(split(damage, '; ')) AS told FROM segments WHERE damage IS NOT NULL)
    UNION ALL SELECT vhost, queue, 0, 0L, what, told FROM queue_damage"""

DAMAGE = Check(
    # And events of messages that are not there, though nothing explains it.
    found="""
    SELECT vhost, queue, priority, 0L AS seq, segment, 0L AS ts, 1L AS weight, told AS detail FROM wrong
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
# Views that rules stand on, in the order in which they stand on one another.
HELPERS = {"starts": STARTS, "steps": STEPS, "firsts": FIRSTS, "back": BACK,
           "dead_lettering": DEAD_LETTERING, "waits": WAITS,
           "limited": LIMITED, "ready": READY, "ends": ENDS, "seen": SEEN, "gaps": GAPS, "absent": ABSENT,
           "wrong": WRONG}
TABLES = ("messages", "events", "lifecycle", "segments")
LIGHT = ("starts", "back", "dead_lettering", "ready", "ends", "seen")    # not worth holding


def _sql(text: str, options: Options) -> str:
    limit = FOREVER if options.delivery_limit is None else options.delivery_limit
    values = {"forever": FOREVER, "limit": limit, "duplicate_window": int(options.duplicate_window_s * 1e9),
              "unacked_after": int(options.unacked_after_s * 1e9),
              "group_by": GROUPS.get(options.group_by or "", "NULL")}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def helpers(spark: "SparkSession", options: Options = DEFAULTS, *, keep: Sequence[str] | None = None) -> None:
    """Make the views that rules stand on, over those of ``views``.

    ``keep``: for these audits; what they need is worked out now, once, and its rows are held; of the tables too,
    which then are views of these rows.
    """
    needed = _needed(keep) if keep is not None else set(HELPERS)
    tables = {name: f"SELECT * FROM {name}" for name in TABLES} if keep is not None else {}
    for name, text in {**tables, **{name: text for name, text in HELPERS.items() if name in needed}}.items():
        table = spark.sql(_sql(text, options))
        held = keep is not None and name not in LIGHT
        (table.localCheckpoint() if held else table).createOrReplaceTempView(name)


def _needed(audits: Sequence[str]) -> set[str]:
    """The helpers that some audits' rules name, and those that these name."""
    texts = [CASES, *(CHECKS[name].found + CHECKS[name].checked for name in audits)]
    words = set(re.findall(r"\w+", " ".join(texts)))
    for name, text in reversed(HELPERS.items()):
        if name in words:
            words |= set(re.findall(r"\w+", text))
    return words & set(HELPERS)


def chosen(options: Options) -> list[str]:
    """The audits that are asked for and can be judged in SQL."""
    return [name for name in CHECKS if options.wants(name) and (name != "group_fifo" or options.group_by in GROUPS)]


def violations(spark: "SparkSession", options: Options = DEFAULTS) -> "DataFrame":
    """Findings of all audits as rows, with file and offset of their messages.  Worked out now, and held.

    Needs the views; of those of the source's tables it leaves behind ones over rows that are held.
    """
    helpers(spark, options, keep=chosen(options))
    every = spark.createDataFrame([], f"audit string, {FOUND}")
    for name in chosen(options):
        found = spark.sql(f"SELECT * FROM ({_sql(CHECKS[name].found, options)})").localCheckpoint()
        # The name is put to it afterwards: Spark fails to plan a union of bare checkpoints.
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

# Where a loss of power excuses what would be a finding, and which column of CASES says that there was such a thing.
OVER_POWER_CUTS = {"delivery_after_settle": "delivered_again", "double_settle": "settled_again", "holes": "lost"}

# Of each queue: messages whose life the journal has not whole, kinds of files with damage, what settings say of it.
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
    """Judge every queue at ``path``: rows as the audits' in ``summary.json``, by queue and audit.

    ``source``: options of the source (``queues``, ``crc``).  Reads everything once and keeps it, in memory or on the
    workers' disks, while it runs.  Raises AuditError.
    """
    tables(spark, path, **source)
    names = chosen(options)
    helpers(spark, options, keep=names)
    cases = {(row.vhost, row.queue): row.asDict() for row in spark.sql(CASES).collect()}
    found = _counts(spark, "found", names, options, "count(*) AS found, sum(weight) AS weight")
    checked = _counts(spark, "checked", names, options, "sum(checked) AS checked")
    for name in reversed(HELPERS):
        spark.catalog.dropTempView(name)
    tables(spark, path, **source)       # Rows that were held are let go.
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

    A query for each: one for all of them takes Spark longer to plan than all of these to run.
    """
    counts: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for name in names:
        rows = _sql(getattr(CHECKS[name], part), options)
        for row in spark.sql(f"SELECT vhost, queue, {columns} FROM ({rows}) GROUP BY vhost, queue").collect():
            counts[name, row[0], row[1]] = tuple(row[2:])
    return counts


def _applies(audit: str, case: Mapping[str, Any], options: Options) -> bool:
    """Whether there is anything that this audit could say of a queue."""
    if audit == "priority":
        return bool(case["has_levels"])
    if audit in ("delivery_limit", "limit_kept"):
        return options.delivery_limit is not None or bool(case["has_limit"])
    return True


def _verdict(audit: str, case: Mapping[str, Any], found: int) -> dict[str, str]:
    """Found: violated. Not found, but not all could be looked at: undecidable. Else held."""
    doubts, spoiled, needs = [], set(case["spoiled"]), CHECKS[audit].needs
    # Without a journal, acks tell of a message that was settled twice; a first delivery may be known without it all.
    if needs == "events" and case[{"fifo": "unsure", "double_settle": "partly"}.get(audit, "uncovered")]:
        doubts.append(f"no order journal covers the whole life of {case['uncovered']} messages")
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
