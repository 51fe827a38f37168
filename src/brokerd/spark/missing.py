"""The rules of the audits ``holes`` and ``damage`` in SQL, for ``checks``: missing, doubled and damaged records.

``brokerd.audit.holes`` has the same rule with arrays, and says what explains a missing number.  Both judge ranges of
numbers: a damaged record may have any number, so a gap may be of any size.
"""

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

# Ranges of missing numbers that nothing explains: retention does, and compaction of what the journal saw settled.
# lost: why that proves nothing: the message, perhaps never confirmed, came before a loss of power; the journal of a
# compacted segment has gaps; the message's last event came before a start, and the broker may have been killed as it
# settled it.  The numbers of a queue are cut where a gap, an excuse or a doubt begins or ends.
ABSENT = """
    WITH compacted AS (
        SELECT *, least(base_seq, first_seq) AS from_seq,
               greatest(last_seq, coalesce(following - 1, last_seq)) AS to_seq
        FROM (SELECT *, lead(base_seq) OVER (PARTITION BY vhost, queue, priority ORDER BY segment) AS following
              FROM segments)
        WHERE generation > 0),
    told AS (SELECT s.* FROM steps s JOIN compacted c USING (vhost, queue, priority, segment)),
    excused AS (
        SELECT vhost, queue, first_seq AS from_seq, last_seq AS to_seq FROM removals
        UNION ALL
        SELECT vhost, queue, from_seq, to_seq FROM compacted WHERE begun IS NULL
        UNION ALL
        SELECT DISTINCT vhost, queue, seq, seq FROM told WHERE settles),
    doubted AS (
        SELECT vhost, queue, from_seq, to_seq FROM compacted WHERE begun IS NOT NULL AND NOT whole
        UNION ALL
        SELECT vhost, queue, least(coalesce(former + 1, first_seq), first_seq),
               greatest(coalesce(nullif(following, 0) - 1, last_seq), last_seq)
        FROM (SELECT *, lag(last_seq) OVER level AS former, lead(base_seq) OVER level AS following FROM segments
              WINDOW level AS (PARTITION BY vhost, queue, priority ORDER BY segment))
        WHERE base_seq = 0 AND first_seq IS NOT NULL
        UNION ALL
        SELECT vhost, queue, seq, seq FROM told WHERE done IS NULL AND after IS NULL AND life_end IS NOT NULL
        UNION ALL
        SELECT s.vhost, s.queue, -{forever},
               coalesce(min(CASE WHEN m.ts > array_max(s.cuts) THEN m.seq END), {forever}) - 1
        FROM starts s JOIN messages m ON m.sound AND m.vhost = s.vhost AND m.queue = s.queue
        WHERE size(s.cuts) > 0 GROUP BY ALL),
    ranges AS (
        SELECT vhost, queue, from_seq, to_seq, 1 AS gap, 0 AS excuse, 0 AS doubt FROM gaps WHERE NOT unknown
        UNION ALL SELECT vhost, queue, from_seq, to_seq, 0, 1, 0 FROM excused WHERE from_seq <= to_seq
        UNION ALL SELECT vhost, queue, from_seq, to_seq, 0, 0, 1 FROM doubted WHERE from_seq <= to_seq),
    changes AS (
        SELECT vhost, queue, at, sum(gap) AS gap, sum(excuse) AS excuse, sum(doubt) AS doubt FROM (
            SELECT vhost, queue, from_seq AS at, gap, excuse, doubt FROM ranges
            UNION ALL SELECT vhost, queue, least(to_seq, {forever} - 1) + 1, -gap, -excuse, -doubt FROM ranges)
        GROUP BY ALL),
    pieces AS (
        SELECT vhost, queue, at AS from_seq, lead(at) OVER rising - 1 AS to_seq, sum(gap) OVER rising AS gap,
               sum(excuse) OVER rising AS excuse, sum(doubt) OVER rising AS doubt
        FROM changes WINDOW rising AS (PARTITION BY vhost, queue ORDER BY at))
    SELECT vhost, queue, from_seq, to_seq, to_seq - from_seq + 1 AS weight, doubt > 0 AS lost
    FROM pieces WHERE gap > 0 AND excuse = 0"""

# A number is missing, or stands in two segments.
FOUND = """
    SELECT vhost, queue, 0 AS priority, from_seq AS seq, 0L AS segment, 0L AS ts, weight,
           CASE WHEN from_seq = to_seq THEN format_string('%d is missing', from_seq)
                ELSE format_string('%d to %d are missing', from_seq, to_seq) END AS detail
    FROM absent WHERE NOT lost
    UNION ALL
    SELECT vhost, queue, max(priority), seq, max(segment), 0L, 1L, 'stands in another segment as well'
    FROM seen GROUP BY vhost, queue, seq HAVING count(DISTINCT priority, segment) > 1"""

CHECKED = """
    SELECT vhost, queue, sum(checked) AS checked FROM (
        SELECT vhost, queue, count(DISTINCT seq) AS checked FROM seen GROUP BY ALL
        UNION ALL SELECT vhost, queue, sum(to_seq - from_seq + 1) FROM gaps WHERE unknown GROUP BY ALL
        UNION ALL SELECT vhost, queue, sum(weight) FROM absent GROUP BY ALL)
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
