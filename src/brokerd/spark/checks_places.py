"""The audits of ``brokerd.audit.places`` and ``levels`` as SQL: where the messages of a queue stand.

``RULES`` has for each audit its findings, its cases, and what it needs, in the form that ``checks`` has them.  The
rules of order find every record that is not behind all earlier ones; the other engine names the culprits.
"""

# Records from before a loss of power whose numbers were given again after it.
STALE = """
    WITH cut AS (SELECT vhost, queue, explode(cuts) AS cut FROM starts),
    since AS (
        SELECT c.vhost, c.queue, c.cut, min(m.seq) AS first_seq
        FROM cut c JOIN messages m ON m.sound AND m.vhost = c.vhost AND m.queue = c.queue AND m.ts > c.cut
        GROUP BY ALL)
    SELECT DISTINCT m.vhost, m.queue, m.priority, m.segment, m.seq
    FROM messages m JOIN since s ON s.vhost = m.vhost AND s.queue = m.queue AND m.ts < s.cut AND m.seq >= s.first_seq
    WHERE m.sound"""

PLACED = """
    SELECT m.* FROM messages m
    LEFT ANTI JOIN stale s ON s.vhost = m.vhost AND s.queue = m.queue AND s.priority = m.priority
     AND s.segment = m.segment AND s.seq = m.seq
    WHERE m.sound"""

HELPERS = {"stale": STALE, "placed": PLACED}

_FINDING = "vhost, queue, priority, seq, segment, ts, 1L AS weight"
_SOUND = "SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound GROUP BY ALL"
_WITH_LEVELS = """
    SELECT vhost, queue, count(*) AS checked FROM messages
    WHERE sound AND (vhost, queue) IN (
        SELECT vhost, queue FROM queues WHERE levels > 1 OR coalesce(max_priority, 0) > 0)
    GROUP BY ALL"""

CHANNEL_ORDER = f"""
    SELECT {_FINDING}, format_string('publish %d of connection %d comes behind %d', publish_seq, connection, earlier)
           AS detail
    FROM (SELECT *, max(publish_seq) OVER (
              PARTITION BY vhost, queue, connection, channel ORDER BY seq, ts
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
          FROM placed WHERE connection > 0)
    WHERE publish_seq <= earlier
      AND (vhost, queue) IN (SELECT vhost, queue FROM queues WHERE levels > 1 OR coalesce(max_priority, 0) > 0)"""

TIME_ORDER = f"""
    SELECT {_FINDING}, format_string('stored at %d ns, and an earlier one at %d', ts, earlier) AS detail
    FROM (SELECT *, max(ts) OVER (PARTITION BY vhost, queue ORDER BY seq, ts
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
          FROM placed)
    WHERE ts <= earlier
    UNION ALL
    SELECT {_FINDING}, format_string('happened at %d ns, as another event did', ts)
    FROM (SELECT e.*, row_number() OVER (PARTITION BY vhost, queue, ts ORDER BY priority, segment, seq) AS number,
                 m.ts IS NOT NULL AS stored
          FROM events e LEFT JOIN starts s USING (vhost, queue)
          LEFT JOIN (SELECT DISTINCT vhost, queue, ts FROM messages WHERE sound) m USING (vhost, queue, ts)
          WHERE e.type <> 'started' AND e.ts > coalesce(array_max(s.cuts), 0L))
    WHERE number > 1 OR stored"""

# Without settings, level 0 of a queue with levels has only messages of priority 0, and no level has a lower priority.
# A record has to have the priority of its properties, also in a queue without levels.
WRONG_LEVEL = f"""
    WITH highest AS (
        SELECT q.vhost, q.queue, q.levels, max(s.max_priority) AS highest
        FROM queues q LEFT JOIN settings s ON s.vhost = q.vhost AND s.queue = q.queue AND s.known
        GROUP BY ALL)
    SELECT {_FINDING}, format_string('has priority %d, and stands in level %d', own_priority, priority) AS detail
    FROM messages JOIN highest USING (vhost, queue)
    WHERE sound AND CASE WHEN own_priority <> said_priority THEN true
                         WHEN levels = 1 AND coalesce(highest, 0) = 0 THEN false
                         WHEN highest IS NOT NULL THEN least(own_priority, highest) <> priority
                         WHEN priority > 0 THEN own_priority < priority
                         ELSE own_priority > 0 END"""

NUMBERS = f"""
    WITH bounds AS (
        SELECT s.vhost, s.queue, s.priority, s.segment, greatest(s.base_seq, 1L) AS from_seq,
               least(coalesce(CASE WHEN q.next_seq > 0 THEN q.next_seq END, {{forever}}),
                     coalesce(nullif(lead(s.base_seq) OVER (
                         PARTITION BY s.vhost, s.queue, s.priority ORDER BY s.segment), 0L), {{forever}})) AS to_seq
        FROM segments s JOIN queues q USING (vhost, queue))
    SELECT {_FINDING}, format_string('not a number from %d up to %d', from_seq, to_seq) AS detail
    FROM placed JOIN bounds USING (vhost, queue, priority, segment)
    WHERE seq < from_seq OR seq >= to_seq"""

AFTER_CUT = f"""
    SELECT {_FINDING}, format_string('later than the cut of the dump, %d ns', cut) AS detail
    FROM (SELECT vhost, queue, priority, seq, segment, ts FROM messages WHERE sound
          UNION ALL SELECT vhost, queue, priority, coalesce(seq, 0L), segment, ts FROM events)
    JOIN queues USING (vhost, queue) WHERE ts > cut"""

# Audit -> (a query for its findings, a query for its cases, what it needs).
RULES = {
    "channel_order": (CHANNEL_ORDER, _WITH_LEVELS, "records"),
    "time_order": (TIME_ORDER, _SOUND, "records"),
    "wrong_level": (WRONG_LEVEL, _SOUND, "records"),
    "numbers": (NUMBERS, _SOUND, "records"),
    "after_cut": (AFTER_CUT, """
        SELECT vhost, queue, sum(checked) AS checked FROM (
            SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound GROUP BY ALL
            UNION ALL SELECT vhost, queue, count(*) FROM events WHERE type <> 'started' GROUP BY ALL)
        GROUP BY ALL""", "records"),
}
