"""The audits of ``brokerd.audit.holders`` as SQL: who holds how many messages of a queue.

``RULES`` has for each audit its findings and its cases, in the form that ``checks`` has them.  ``HELPERS`` are views
that they read.
"""

# Each delivery to a consumer, and until when its message is surely held; ts: not at all.
HELD = """
    SELECT s.vhost, s.queue, s.priority, s.segment, s.seq, s.ts, s.position, coalesce(s.consumer, 0L) AS consumer,
           CASE WHEN NOT s.covered THEN s.ts
                WHEN s.after_life <=> s.life
                    THEN CASE WHEN s.after IN ('acked', 'rejected', 'returned') THEN s.after_ts ELSE s.ts END
                WHEN d.queue IS NOT NULL THEN s.ts
                ELSE coalesce(s.life_end, {forever}) END AS until
    FROM steps s LEFT JOIN dead_lettering d ON d.vhost = s.vhost AND d.queue = s.queue
    WHERE s.delivers AND NOT s.by_get AND NOT s.no_ack"""

# Each delivery, and how many messages everyone and its own consumer held just before. What ends at the time of a
# delivery has ended (its row has no segment, and comes first); deliveries of one time come as they stand in the file.
_PLACE = ("ts, priority NULLS FIRST, segment NULLS FIRST, seq NULLS FIRST, position NULLS FIRST "
          "ROWS UNBOUNDED PRECEDING")
HANDED = f"""
    WITH moves_of_held AS (
        SELECT vhost, queue, consumer, ts, 1L AS more, priority, segment, seq, position, 1L AS own
        FROM held WHERE until > ts
        UNION ALL
        SELECT vhost, queue, consumer, ts, 0L, priority, segment, seq, position, 0L FROM held WHERE until <= ts
        UNION ALL
        SELECT vhost, queue, consumer, until, -1L, NULL, NULL, NULL, NULL, 0L FROM held WHERE until > ts),
    sums AS (
        SELECT *, sum(more) OVER (PARTITION BY vhost, queue ORDER BY {_PLACE}) - own AS everyone,
               sum(more) OVER (PARTITION BY vhost, queue, consumer ORDER BY {_PLACE}) - own AS mine
        FROM moves_of_held)
    SELECT * FROM sums WHERE seq IS NOT NULL"""

# Queues whose journal was switched off once: consumers may have a line that is younger than they are.
SWITCHED = """
    SELECT vhost, queue FROM settings WHERE known AND NOT journal
    UNION SELECT vhost, queue FROM events WHERE type = 'started' AND reason IN ('switched on', 'switched off')"""

# Deliveries to consumers of which order.jsonl has no line, and why it must have one.
#   lesser      when the last consumer with a lower number came: this one came after it
#   following   when the next line was written; the line of a consumer comes before it
STRANGERS = """
    WITH strange AS (
        SELECT h.*, coalesce(h.ts - 1000000000 > c.gone, false) AS late
        FROM handed h LEFT JOIN consumers c ON c.vhost = h.vhost AND c.queue = h.queue AND c.number = h.consumer
        WHERE h.consumer > 0 AND c.at IS NULL),
    lessers AS (
        SELECT s.vhost, s.queue, s.consumer, max(c.at) AS lesser
        FROM (SELECT DISTINCT vhost, queue, consumer FROM strange) s
        JOIN consumers c ON c.vhost = s.vhost AND c.queue = s.queue AND c.number < s.consumer
        GROUP BY ALL),
    followings AS (
        SELECT s.vhost, s.queue, s.ts, min(n.at) AS following
        FROM strange s JOIN noted n ON n.vhost = s.vhost AND n.queue = s.queue AND n.at > s.ts + 1000000000
        GROUP BY ALL)
    SELECT s.*, coalesce(l.lesser - 1000000000 > s.ts, false)
           OR coalesce(s.ts >= q.noted_since AND f.following IS NOT NULL AND coalesce(size(t.cuts), 0) = 0
                       AND NOT exists(coalesce(t.starts, array()), start -> start >= s.ts AND start < f.following),
                       false)
           AS must_be_known
    FROM strange s JOIN queues q ON q.vhost = s.vhost AND q.queue = s.queue
    LEFT JOIN lessers l ON l.vhost = s.vhost AND l.queue = s.queue AND l.consumer = s.consumer
    LEFT JOIN followings f ON f.vhost = s.vhost AND f.queue = s.queue AND f.ts = s.ts
    LEFT JOIN starts t ON t.vhost = s.vhost AND t.queue = s.queue"""

HELPERS = {"held": HELD, "handed": HANDED, "switched": SWITCHED, "strangers": STRANGERS}

_FINDING = "h.vhost, h.queue, h.priority, h.seq, h.segment, h.ts, 1L AS weight"
_SINGLE = """
    (SELECT * FROM handed WHERE (vhost, queue) IN (SELECT vhost, queue FROM settings WHERE single_active)) h
    LEFT ANTI JOIN in_force s ON s.vhost = h.vhost AND s.queue = h.queue AND NOT s.single_active
     AND h.ts < s.until AND h.ts >= s.begins"""
_LIMITED = "handed h JOIN consumers c ON c.vhost = h.vhost AND c.queue = h.queue AND c.number = h.consumer"

# Audit -> (a query for its findings, a query for its cases).
RULES = {
    "single_active": (
        f"""SELECT {_FINDING}, format_string('handed out to consumer %d while others held %d', h.consumer,
                   h.everyone - h.mine) AS detail
        FROM {_SINGLE} WHERE h.everyone > h.mine""",
        f"SELECT h.vhost, h.queue, count(*) AS checked FROM {_SINGLE} GROUP BY ALL"),
    "prefetch": (
        f"""SELECT {_FINDING}, format_string('consumer %d had as many messages as its prefetch allows: %d', h.consumer,
                   c.prefetch) AS detail
        FROM {_LIMITED} WHERE c.prefetch > 0 AND h.mine >= c.prefetch""",
        f"SELECT h.vhost, h.queue, count(*) AS checked FROM {_LIMITED} WHERE c.prefetch > 0 GROUP BY ALL"),
    "consumers": (
        f"""SELECT {_FINDING}, format_string('handed out to consumer %d, which was gone at %d ns', h.consumer, c.gone)
                   AS detail
        FROM {_LIMITED} WHERE h.ts - 1000000000 > c.gone
        UNION ALL
        SELECT {_FINDING}, format_string('handed out to consumer %d, which came at %d ns', h.consumer, c.at)
        FROM {_LIMITED} LEFT ANTI JOIN switched w ON w.vhost = h.vhost AND w.queue = h.queue
        WHERE c.at - 1000000000 > h.ts AND NOT coalesce(h.ts - 1000000000 > c.gone, false)
        UNION ALL
        SELECT {_FINDING}, format_string('handed out to consumer %d, of which order.jsonl has no line', h.consumer)
        FROM strangers h LEFT ANTI JOIN switched w ON w.vhost = h.vhost AND w.queue = h.queue
        WHERE h.must_be_known AND NOT h.late""",
        "SELECT h.vhost, h.queue, count(*) AS checked FROM handed h GROUP BY ALL"),
}

# Queues that handed messages to consumers of which order.jsonl has no line, or in the second after they were gone.
UNKNOWN = """
    SELECT DISTINCT h.vhost, h.queue FROM held h
    LEFT JOIN consumers c ON c.vhost = h.vhost AND c.queue = h.queue AND c.number = h.consumer
    WHERE (h.consumer > 0 AND c.at IS NULL) OR (h.ts > c.gone AND h.ts - 1000000000 <= c.gone)"""
