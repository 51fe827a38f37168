"""The audits of ``brokerd.audit.deliveries`` as SQL: each judges deliveries by the events of their own message.

``RULES`` has for each audit its findings and its cases, in the form that ``checks`` has them.  ``HELPERS`` are views
that they read.  That module says what each audit holds against the broker; here stands only how SQL comes to the same.
"""

# Each event of ``steps`` with its count and consumer (0: none), and what the events before it said.
#   born            the life of the broker in which the message was published
#   later           the event is later than the publish
#   delivered_n, delivered_in_life_n    such deliveries before this event, and those of the same life of the broker
#   same            the event before it is of the same life of the broker
#   last_of_life    the event before it was the last of its segment in its life of the broker
MOVES = """
    WITH counted AS (
        SELECT s.*, coalesce(s.ts > s.published, true) AS later, s.failures AS count, coalesce(s.consumer, 0L) AS who,
               size(filter(coalesce(t.starts, array()), start -> start < s.published)) AS born,
               max(s.ts) OVER (PARTITION BY s.vhost, s.queue, s.priority, s.segment, s.life) AS life_last
        FROM steps s LEFT JOIN own_starts t USING (vhost, queue, priority, segment))
    SELECT *, lag(count) OVER message AS count_before, lag(who) OVER message AS who_before,
           lag(life) OVER message <=> life AS same, lag(redelivered) OVER message AS redelivered_before,
           lag(ts) OVER message = lag(life_last) OVER message AS last_of_life,
           coalesce(sum(int(delivers AND later)) OVER (PARTITION BY vhost, queue, priority, segment, seq
                                            ORDER BY ts, position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0L)
               AS delivered_n,
           coalesce(sum(int(delivers AND later)) OVER (PARTITION BY vhost, queue, priority, segment, seq, life
                                            ORDER BY ts, position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0L)
               AS delivered_in_life_n
    FROM counted
    WINDOW message AS (PARTITION BY vhost, queue, priority, segment, seq ORDER BY ts, position)"""

# The settings of each queue, and from when on they count for what judges by them: those in force, and those that came
# just after, because the broker writes the line a moment after the change.
IN_FORCE = """
    SELECT *, coalesce(lag(since) OVER (PARTITION BY vhost, queue ORDER BY since), 0L) AS begins FROM settings
    WHERE known"""

HELPERS = {"moves": MOVES, "in_force": IN_FORCE}

_FINDING = "vhost, queue, priority, seq, segment, ts, 1L AS weight"
_CASES = "SELECT vhost, queue, count(*) AS checked FROM moves WHERE {} GROUP BY ALL"


def _found(where: str, detail: str) -> str:
    return f"SELECT {_FINDING}, {detail} AS detail FROM moves WHERE {where}"


_REDELIVERED = _found("""delivers AND later AND known AND (
        (delivered_n > 0 AND NOT redelivered) OR (before_start AND NOT redelivered)
        OR (covered AND delivered_n = 0 AND redelivered
            AND (NOT before_start OR NOT unseen OR published IS NOT NULL AND born = life))
        OR (covered AND delivered_n > 0 AND delivered_in_life_n = 0 AND redelivered AND NOT before_start)
        OR (covered AND delivered_in_life_n > 0 AND before_start))""",
    "format_string('marked as redelivered: %s, from before a start: %s; %d deliveries before it, %d of them since the "
    "start', redelivered, before_start, delivered_n, delivered_in_life_n)")

_DEAD = "type IN ('dead-lettered', 'dropped')"
_AT_LIMIT = f"({_DEAD} AND reason <=> 'delivery_limit' AND same AND before <=> 'returned')"
_BY_CONSUMER = f"""covered AND (type = 'returned' OR (
        (type IN ('acked', 'rejected') OR (type = 'dead-lettered' AND reason <=> 'rejected') OR {_AT_LIMIT})
        AND NOT ({_DEAD} AND who = 0)))"""
_HAD = f"(out OR {_AT_LIMIT})"
_LEAVES = f"covered AND (type IN ('expired', 'purged') OR ({_DEAD} AND NOT reason <=> 'rejected'))"

_DEATHS = f"""
    SELECT m.vhost, m.queue, m.priority, m.seq, m.segment, m.ts, any_value(m.count) AS count,
           CASE WHEN {{limit}} < {{forever}} THEN {{limit}} ELSE min(coalesce(s.delivery_limit, {{forever}})) END
               AS bound,
           count(s.queue) > 0 OR {{limit}} < {{forever}} AS judged
    FROM moves m LEFT JOIN in_force s ON s.vhost = m.vhost AND s.queue = m.queue
     AND coalesce(m.published, 0L) < s.until AND m.ts >= s.begins
    WHERE {_DEAD} AND m.reason = 'delivery_limit'
    GROUP BY m.vhost, m.queue, m.priority, m.seq, m.segment, m.ts"""

_EXPIRED = f"""
    SELECT m.vhost, m.queue, m.priority, m.seq, m.segment, m.ts, m.published,
           least(coalesce(any_value(x.expiration_ms), {{forever}} div 1000000),
                 coalesce(min(s.message_ttl_ms), {{forever}} div 1000000)) AS ttl_ms
    FROM moves m
    JOIN messages x ON x.sound AND x.vhost = m.vhost AND x.queue = m.queue AND x.priority = m.priority
     AND x.segment = m.segment AND x.seq = m.seq
    JOIN in_force s ON s.vhost = m.vhost AND s.queue = m.queue AND m.published < s.until AND m.ts >= s.begins
    WHERE m.published IS NOT NULL AND (m.type = 'expired' OR ({_DEAD} AND m.reason = 'expired'))
    GROUP BY m.vhost, m.queue, m.priority, m.seq, m.segment, m.ts, m.published"""

_SETTLED_BEFORE = "before IN ('acked', 'rejected', 'dead-lettered', 'expired', 'dropped', 'purged')"
_COUNTED = f"""
    SELECT *, least(low, 65535) AS least_count, least(low + maybe + midst, 65535) AS most_count FROM (
        SELECT *, base - midst AS low FROM (
            SELECT *, coalesce(count_before, 0) + int(type = 'returned') + int(cut) AS base,
                   int(cut AND redelivered_before AND last_of_life) AS midst,
                   int(before IS NULL AND unseen
                       AND ((delivers AND before_start) OR (NOT delivers AND life > coalesce(born, 0)))) AS maybe
            FROM (SELECT *, before IS NOT NULL AND NOT same AND before = 'delivered' AS cut FROM moves
                  WHERE covered AND NOT coalesce({_SETTLED_BEFORE}, false))))"""

_LIVED = """
    SELECT d.vhost, d.queue, d.priority, d.seq, d.segment, d.ts, d.published,
           least(coalesce(any_value(x.expiration_ms), {forever} div 1000000),
                 coalesce(max(coalesce(s.message_ttl_ms, {forever} div 1000000)), {forever} div 1000000)) AS ttl_ms
    FROM moves d
    JOIN messages x ON x.sound AND x.vhost = d.vhost AND x.queue = d.queue AND x.priority = d.priority
     AND x.segment = d.segment AND x.seq = d.seq
    LEFT JOIN in_force s ON s.vhost = d.vhost AND s.queue = d.queue AND d.published < s.until AND d.ts >= s.begins
    WHERE d.delivers AND d.published IS NOT NULL
    GROUP BY d.vhost, d.queue, d.priority, d.seq, d.segment, d.ts, d.published"""

_SINCE_PUBLISH = """
    SELECT e.vhost, e.queue, e.priority, e.segment, e.seq, e.ts, l.published
    FROM events e JOIN lifecycle l ON l.vhost = e.vhost AND l.queue = e.queue AND l.priority = e.priority
     AND l.segment = e.segment AND l.seq = e.seq
    WHERE e.type <> 'started'"""

# Audit -> (a query for its findings, a query for its cases).
RULES = {
    "redelivered": (_REDELIVERED, _CASES.format("delivers AND later AND known")),
    "out_twice": (
        _found("delivers AND covered AND out", "format_string('handed out to %d while %d had it', who, who_before)"),
        _CASES.format("delivers AND covered")),
    "wrong_consumer": (
        _found(f"{_BY_CONSUMER} AND CASE WHEN {_HAD} THEN who <> who_before ELSE type = 'returned' END",
               "format_string('%d settled or returned it, and another or none had it', who)"),
        _CASES.format(_BY_CONSUMER)),
    "ended_while_out": (
        _found(f"{_LEAVES} AND out", "format_string('left the queue while %d had it', who_before)"),
        _CASES.format(_LEAVES)),
    "early_death": (
        f"""SELECT {_FINDING}, format_string('dead of its limit after %d failures', count) AS detail
        FROM ({_DEATHS}) WHERE judged AND count <= bound
        UNION ALL
        SELECT {_FINDING}, format_string('expired %d ms after its publish, with a time to live of %d ms',
                                         (ts - published) div 1000000, ttl_ms) AS detail
        FROM ({_EXPIRED}) WHERE ttl_ms >= {{forever}} div 1000000 OR ts - published < ttl_ms * 1000000""",
        f"""SELECT vhost, queue, count(*) AS checked FROM ({_DEATHS}) WHERE judged GROUP BY ALL
        UNION ALL SELECT vhost, queue, count(*) FROM ({_EXPIRED}) GROUP BY ALL"""),
    "failure_counts": (
        f"""SELECT {_FINDING}, format_string('counts %d failed deliveries, and should count %d', count, most_count)
            AS detail FROM ({_COUNTED}) WHERE count < least_count OR count > most_count""",
        f"SELECT vhost, queue, count(*) AS checked FROM ({_COUNTED}) GROUP BY ALL"),
    "before_publish": (
        f"""SELECT {_FINDING}, format_string('happened before its message was published, at %d ns', published) AS detail
        FROM ({_SINCE_PUBLISH}) LEFT JOIN starts USING (vhost, queue)
        WHERE ts <= published AND NOT exists(coalesce(cuts, array()), cut -> cut > ts AND cut < published)""",
        f"SELECT vhost, queue, count(*) AS checked FROM ({_SINCE_PUBLISH}) GROUP BY ALL"),
    "late_delivery": (
        f"""SELECT {_FINDING}, format_string('handed out %d ms after its publish, with a time to live of %d ms',
                   (ts - published) div 1000000, ttl_ms) AS detail
        FROM ({_LIVED}) WHERE ttl_ms < {{forever}} div 1000000 AND ts - published - 1000000 > ttl_ms * 1000000""",
        f"""SELECT vhost, queue, count(*) AS checked FROM ({_LIVED}) WHERE ttl_ms < {{forever}} div 1000000
        GROUP BY ALL"""),
}
