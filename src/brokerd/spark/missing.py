"""The rules of the audits ``holes`` and ``damage`` in SQL, for ``checks``: missing, doubled and damaged records.

``brokerd.audit.holes`` has the same rule with arrays, and says what explains a missing number.
"""

FAR = 1 << 22                   # so many numbers in one gap are judged as one

# The numbers that are there, over all levels together. The number of a damaged record counts if it fits its place.
SEEN = """
    SELECT m.vhost, m.queue, m.priority, m.segment, m.seq
    FROM messages m JOIN segments s USING (vhost, queue, priority, segment)
    WHERE m.sound OR m.seq BETWEEN s.base_seq AND s.last_seq + 1"""

# The numbers that should be there: from the first one that a segment or a dump's manifest promises, to the last one.
# unknown: the gap is not within one segment, and no journal tells of segments that were removed.
GAPS = """
    WITH promised AS (
        SELECT s.vhost, s.queue, min(least(s.first_seq, nullif(s.base_seq, 0))) AS low, max(s.last_seq) AS high,
               max(s.begun) IS NULL AS unjournaled, any_value(q.levels) AS levels,
               any_value(q.first_kept_seq) AS kept, any_value(q.next_seq) AS following
        FROM segments s JOIN queues q USING (vhost, queue) WHERE s.records > 0 GROUP BY ALL),
    edges AS (
        SELECT vhost, queue, seq FROM seen
        UNION ALL
        SELECT vhost, queue, CASE WHEN kept > 0 AND kept < low THEN kept ELSE low END - 1 FROM promised
        UNION ALL
        SELECT vhost, queue, following FROM promised WHERE following > high + 1 AND following < high + (1L << 40)),
    gaps AS (
        SELECT vhost, queue, seq + 1 AS from_seq, lead(seq) OVER (PARTITION BY vhost, queue ORDER BY seq) - 1 AS to_seq
        FROM edges)
    SELECT g.*, p.unjournaled AND (p.levels > 1 OR NOT EXISTS (
               SELECT 1 FROM segments s WHERE s.vhost = g.vhost AND s.queue = g.queue
                AND s.base_seq <= g.from_seq AND s.last_seq >= g.to_seq)) AS unknown
    FROM gaps g JOIN promised p USING (vhost, queue) WHERE g.from_seq <= g.to_seq"""

# Missing numbers that nothing explains: retention does, and compaction of what the journal saw settled.
# lost: why that proves nothing: the message, perhaps never confirmed, came before a loss of power; the journal of a
# compacted segment has gaps; the message's last event came before a start, and the broker may have been killed as it
# settled it.
ABSENT = f"""
    WITH compacted AS (
        SELECT *, least(base_seq, first_seq) AS from_seq,
               greatest(last_seq, coalesce(following - 1, last_seq)) AS to_seq
        FROM (SELECT *, lead(base_seq) OVER (PARTITION BY vhost, queue, priority ORDER BY segment) AS following
              FROM segments)
        WHERE generation > 0),
    excused AS (
        SELECT vhost, queue, first_seq AS from_seq, last_seq AS to_seq FROM removals
        UNION ALL
        SELECT vhost, queue, from_seq, to_seq FROM compacted WHERE begun IS NULL),
    told AS (SELECT s.* FROM steps s JOIN compacted c USING (vhost, queue, priority, segment)),
    explained AS (SELECT DISTINCT vhost, queue, seq FROM told WHERE settles),
    doubted AS (
        SELECT vhost, queue, from_seq, to_seq FROM compacted WHERE begun IS NOT NULL AND NOT whole
        UNION ALL
        SELECT vhost, queue, least(coalesce(former + 1, first_seq), first_seq),
               greatest(coalesce(nullif(following, 0) - 1, last_seq), last_seq)
        FROM (SELECT *, lag(last_seq) OVER level AS former, lead(base_seq) OVER level AS following FROM segments
              WINDOW level AS (PARTITION BY vhost, queue, priority ORDER BY segment))
        WHERE base_seq = 0 AND first_seq IS NOT NULL
        UNION ALL
        SELECT vhost, queue, seq, seq FROM told WHERE done IS NULL AND after IS NULL AND life_end IS NOT NULL),
    missing AS (
        SELECT vhost, queue, explode(sequence(from_seq, to_seq)) AS seq FROM gaps
        WHERE NOT unknown AND to_seq - from_seq < {FAR}),
    since AS (
        SELECT s.vhost, s.queue, coalesce(min(CASE WHEN m.ts > array_max(s.cuts) THEN m.seq END), {{forever}}) AS since
        FROM starts s JOIN messages m ON m.sound AND m.vhost = s.vhost AND m.queue = s.queue
        WHERE size(s.cuts) > 0 GROUP BY ALL)
    SELECT m.*, coalesce(m.seq < p.since, false) OR EXISTS (
               SELECT 1 FROM doubted d WHERE d.vhost = m.vhost AND d.queue = m.queue
                AND m.seq BETWEEN d.from_seq AND d.to_seq) AS lost
    FROM missing m LEFT JOIN since p ON p.vhost = m.vhost AND p.queue = m.queue
    LEFT ANTI JOIN explained x ON x.vhost = m.vhost AND x.queue = m.queue AND x.seq = m.seq
    LEFT ANTI JOIN excused e ON e.vhost = m.vhost AND e.queue = m.queue AND m.seq BETWEEN e.from_seq AND e.to_seq"""

# Gaps before a number to which no queue comes soon: damage made it.  Nothing explains them but a loss of power.
_FAR_GAPS = f"""
    SELECT g.vhost, g.queue, g.from_seq, g.to_seq, g.to_seq - g.from_seq + 1 AS weight
    FROM gaps g LEFT ANTI JOIN starts s ON s.vhost = g.vhost AND s.queue = g.queue AND size(s.cuts) > 0
    WHERE NOT g.unknown AND g.to_seq - g.from_seq >= {FAR}"""

# A number is missing, or stands in two segments.
FOUND = f"""
    SELECT vhost, queue, 0 AS priority, seq, 0L AS segment, 0L AS ts, 1L AS weight,
           format_string('%d is missing', seq) AS detail
    FROM absent WHERE NOT lost
    UNION ALL
    SELECT vhost, queue, 0, from_seq, 0L, 0L, weight, format_string('%d to %d are missing', from_seq, to_seq)
    FROM ({_FAR_GAPS})
    UNION ALL
    SELECT vhost, queue, max(priority), seq, max(segment), 0L, 1L, 'stands in another segment as well'
    FROM seen GROUP BY vhost, queue, seq HAVING count(DISTINCT priority, segment) > 1"""

CHECKED = f"""
    SELECT vhost, queue, sum(checked) AS checked FROM (
        SELECT vhost, queue, count(DISTINCT seq) AS checked FROM seen GROUP BY ALL
        UNION ALL SELECT vhost, queue, sum(to_seq - from_seq + 1) FROM gaps WHERE unknown GROUP BY ALL
        UNION ALL SELECT vhost, queue, sum(weight) FROM ({_FAR_GAPS}) GROUP BY ALL
        UNION ALL SELECT vhost, queue, count(*) FROM absent GROUP BY ALL)
    GROUP BY ALL"""

# The damage of each file; what: the kind of the file.
WRONG = """
    SELECT vhost, queue, priority, segment, split(detail, '[.]')[0] AS what, detail
    FROM (SELECT *, explode(split(damage, '; ')) AS detail FROM segments WHERE damage IS NOT NULL)
    UNION ALL SELECT vhost, queue, 0, 0L, what, detail FROM queue_damage"""

# Events of messages that are not in their segment, unless a compaction or a damaged segment explains it.
ORPHANS = """
    SELECT e.vhost, e.queue, e.priority, e.seq, e.segment, e.ts
    FROM events e JOIN segments s USING (vhost, queue, priority, segment)
    LEFT ANTI JOIN messages m ON m.sound AND m.vhost = e.vhost AND m.queue = e.queue AND m.priority = e.priority
     AND m.segment = e.segment AND m.seq = e.seq
    WHERE e.type <> 'started' AND s.generation = 0 AND coalesce(s.damage, '') NOT LIKE '%msgs.%'"""

DAMAGE = """
    SELECT vhost, queue, priority, 0L AS seq, segment, 0L AS ts, 1L AS weight, detail FROM wrong
    UNION ALL
    SELECT vhost, queue, priority, seq, segment, ts, 1L, 'an event of a message that is not in the segment'
    FROM orphans"""

DAMAGE_CHECKED = """
    SELECT vhost, queue, sum(checked) AS checked FROM (
        SELECT vhost, queue, count(*) AS checked FROM messages WHERE sound GROUP BY ALL
        UNION ALL SELECT vhost, queue, count(*) FROM events WHERE type <> 'started' GROUP BY ALL)
    GROUP BY ALL"""
