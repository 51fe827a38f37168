"""The life of each message, as SQL views for ``checks``: events in order, with the lives of the broker.

``brokerd.audit.lifecycle`` has the same with arrays.  A broker's *life* is the time between two starts; messages that
are out when it ends count as returned.
"""

# When each life of the broker began, by the journals of a queue or of a segment, and which of them began after a loss
# of power.  A start writes no event into the journal of a segment that was settled before.
_STARTS = """
    SELECT {of}, array_sort(collect_set(ts)) AS starts, collect_set(CASE WHEN reason = 'power lost' THEN ts END) AS cuts
    FROM events WHERE type = 'started' AND reason IN ('restarted', 'power lost', 'switched on')
    GROUP BY {of}"""
STARTS, OWN_STARTS = (_STARTS.format(of=of) for of in ("vhost, queue", "vhost, queue, priority, segment"))

# Each event with the events before and after it in its message's life.
#   life        how many starts of the broker came before; life_end: when that life ended (null: it is the last); both
#               by the segment's own journal; queue_life: by those of the queue
#   head        the message's first known delivery in that life: its time, and whether an earlier one is possible
#   out         whether the message was with a consumer just before this event
#   covered     whether the journal has its message's whole life
#   known       whether its record exists, or a compaction explains why not
#   unseen      whether the message may have been out without an event
#   cuts        how many losses of power came before
#   done        when the message was first settled; excused: a loss of power since then may have taken that ack
# Events before a message's publish are left out: a message that a power cut took had the same number before. So are
# events of messages that are not in the segment, if neither a compaction nor damage explains that. A message is known
# by its segment and its number, because a fault may put one number into two segments.
STEPS = """
    WITH known_events AS (
        SELECT e.vhost, e.queue, e.priority, e.segment, e.seq, e.ts, e.type, e.reason, e.consumer, e.run,
               e.position,
               e.count AS failures, e.redelivered, e.before_start, e.by_get, e.no_ack,
               coalesce(l.covered, g.generation > 0) AS covered, l.published, coalesce(l.unseen, true) AS unseen,
               l.seq IS NOT NULL OR g.generation > 0 AS known,
               size(filter(coalesce(s.starts, array()), start -> start < e.ts)) AS life,
               size(filter(coalesce(q.starts, array()), start -> start < e.ts)) AS queue_life,
               size(filter(coalesce(s.cuts, array()), cut -> cut < e.ts)) AS cuts,
               get(filter(coalesce(s.starts, array()), start -> start > e.ts), 0) AS life_end,
               e.type IN ('acked', 'rejected', 'dead-lettered', 'expired', 'dropped', 'purged') AS settles
        FROM events e
        JOIN segments g ON g.vhost = e.vhost AND g.queue = e.queue AND g.priority = e.priority AND g.segment = e.segment
        LEFT JOIN own_starts s ON s.vhost = e.vhost AND s.queue = e.queue AND s.priority = e.priority
         AND s.segment = e.segment
        LEFT JOIN starts q ON q.vhost = e.vhost AND q.queue = e.queue
        LEFT JOIN lifecycle l ON l.vhost = e.vhost AND l.queue = e.queue AND l.priority = e.priority
         AND l.segment = e.segment AND l.seq = e.seq
        WHERE e.type <> 'started' AND (l.seq IS NOT NULL OR g.generation > 0 OR coalesce(g.damage, '') LIKE '%msgs.%')
          AND NOT (coalesce(size(s.cuts), 0) > 0 AND coalesce(e.ts < l.published, false))),
    marked AS (
        SELECT *, min(CASE WHEN settles THEN struct(ts, cuts) END)
                      OVER (PARTITION BY vhost, queue, priority, segment, seq) AS first_end
        FROM known_events)
    SELECT *, type = 'delivered' AS delivers, first_end.ts AS done, coalesce(cuts > first_end.cuts, false) AS excused,
           lag(type) OVER message AS before, lead(type) OVER message AS after, lead(ts) OVER message AS after_ts,
           lead(reason) OVER message AS after_reason, lead(life) OVER message AS after_life,
           lag(type) OVER message <=> 'delivered' AND lag(life) OVER message = life AS out,
           min(CASE WHEN type = 'delivered' THEN struct(ts, redelivered AND NOT before_start AS doubtful) END)
               OVER (PARTITION BY vhost, queue, priority, segment, seq, life) AS head
    FROM marked
    WINDOW message AS (PARTITION BY vhost, queue, priority, segment, seq ORDER BY ts, position)"""

# The first delivery of each message; sure: the journal misses no delivery before it.
FIRSTS = """
    SELECT vhost, queue, priority, segment, seq, min(ts) AS first,
           bool_or(covered) OR (bool_and(known) AND NOT min_by(redelivered, struct(ts, position))) AS sure
    FROM steps WHERE delivers GROUP BY vhost, queue, priority, segment, seq HAVING min(ts) > 0"""

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
    LEFT ANTI JOIN settings s ON s.vhost = b.vhost AND s.queue = b.queue AND (s.retry OR s.stops) AND b.ts = b.since
     AND b.since >= s.since AND b.since < s.until
    WHERE b.covered AND (b.after = 'delivered' OR (b.after IS NULL AND d.queue IS NULL))"""

# Queues that have had a dead letter exchange.
DEAD_LETTERING = "SELECT DISTINCT vhost, queue FROM settings WHERE dead_letters"

# Queues that may set messages aside: those with dead letters, and those with unknown settings.
MAY_SET_ASIDE = "SELECT DISTINCT vhost, queue FROM settings WHERE dead_letters OR groups OR NOT known"

# Queues that have, or had, message groups: order holds in each group, and not in the queue.
IN_GROUPS = "SELECT DISTINCT vhost, queue FROM settings WHERE groups"

HELPERS = {"starts": STARTS, "own_starts": OWN_STARTS, "steps": STEPS, "firsts": FIRSTS, "back": BACK,
           "dead_lettering": DEAD_LETTERING, "may_set_aside": MAY_SET_ASIDE, "in_groups": IN_GROUPS,
           "waits": WAITS}
