"""The rule of the audit ``agreement`` in SQL, for ``checks``: it compares the acks with the journal.

``brokerd.audit.agreement`` has the same rule with arrays, and says which differences are doubts.
"""

SETTLES = "type IN ('acked', 'rejected', 'dead-lettered', 'expired', 'dropped', 'purged')"
MESSAGE = "vhost, queue, priority, segment, seq"
SEGMENT = "vhost, queue, priority, segment"

# What the acks say of each message.
#   ended        the type and reason of its last settlement
#   last         the type and count of its last entry
#   behind       an entry stands behind one that settles it
#   moved        a return or a hand-out stands behind another one of later events; all events of one type and one count
#                are alike
ENTERED = f"""
    SELECT {MESSAGE}, count_if(settles) AS settled,
           max_by(struct(type, reason), entry) FILTER (WHERE settles) AS ended,
           count_if(type = 'returned') AS returned, count_if(type = 'handed out') AS handed,
           max_by(struct(type, count), entry) AS last,
           bool_or(coalesce(settled_before, false)) AS behind, bool_or(coalesce(last_ts < former_ts, false)) AS moved
    FROM (SELECT *, max(settles) OVER former AS settled_before, max(first_ts) OVER former AS former_ts
          FROM (SELECT *, {SETTLES} AS settles FROM acks WHERE seq IS NOT NULL)
          LEFT JOIN (
              SELECT {MESSAGE}, CASE type WHEN 'delivered' THEN 'handed out' ELSE type END AS type, failures AS count,
                     min(ts) AS first_ts, max(ts) AS last_ts
              FROM steps WHERE type = 'returned' OR (delivers AND NOT no_ack)
              GROUP BY {MESSAGE}, type, failures) USING ({MESSAGE}, type, count)
          WINDOW former AS (PARTITION BY {MESSAGE} ORDER BY entry ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
    GROUP BY {MESSAGE}"""

# Below ``said_doubted`` a loss of power left all entries of a record; above it they may be those of another record.
BEHIND = "(coalesce(g.said_doubted, 0L) = 0 OR l.position < g.said_doubted)"

# Findings of ``double_settle`` that the acks show, of messages that the journal does not cover.
SETTLED_TWICE = f"""
    SELECT {MESSAGE}, coalesce(l.settled, 0L) AS ts, 1L AS weight,
           CASE WHEN t.settled > 1 THEN format_string('settled %d times', t.settled)
                ELSE 'the acks have an entry of it behind the one that settles it' END AS detail
    FROM lifecycle l JOIN segments g USING ({SEGMENT}) JOIN entered t USING ({MESSAGE})
    LEFT JOIN (SELECT {MESSAGE}, count_if(settles) AS ends, bool_or(ts > done) AS later FROM steps GROUP BY {MESSAGE}) s
        USING ({MESSAGE})
    WHERE NOT l.covered AND coalesce(s.ends, 0) <= 1
      AND (t.settled > 1 OR (t.settled = 1 AND t.behind AND NOT coalesce(s.later, false) AND {BEHIND}))"""

# A row for each message that is compared; wrong: what differs, null: nothing; excused: a kill or a loss of power may
# have made the difference.
#   entered      what the acks say; said: what the journal says
#   around       each settling entry with the times at which those before and behind it were settled
#   in_flight    messages whose settlement a start of the broker may have cut in two: a client settles only what it has
#   acts, notes  events that have entries, and entries, by the count of failed deliveries
#   lacks        of which messages events have no entry; doubtful: a kill came between the two, perhaps
#   beside       messages of which the first hand-out may have an entry: the cursor does not tell of it
#   stray        messages with an entry of a return, or of a later hand-out, that the journal does not have
#   asides       messages that are out, of which the last entry says that they were set aside, and no client can have
#                rejected them; closing: their hand-out is the last event of a life
#   passed       whether the cursor of the acks has passed the message; last_passed: it is the last of those, and a
#                broker's life has ended since, or one may be at work
AGREED = f"""
    WITH entries AS (SELECT *, {SETTLES} AS settles FROM acks WHERE seq IS NOT NULL),
    said AS (
        SELECT {MESSAGE}, count_if(settles) AS settled,
               max_by(struct(type, reason), ts) FILTER (WHERE settles) AS ended, min(done) AS done,
               count_if(type = 'returned') AS returned, count_if(delivers AND redelivered AND NOT no_ack) AS handed,
               count_if(delivers) AS delivered, max(ts) AS last_ts, max_by(type, ts) AS last_type,
               max_by(failures, ts) AS last_failures
        FROM steps GROUP BY {MESSAGE}),
    lives AS (
        SELECT {SEGMENT}, collect_list(ts) AS begun, bool_or(reason = 'power lost') AS power_lost
        FROM events WHERE type = 'started' AND reason IN ('restarted', 'power lost', 'switched on')
        GROUP BY {SEGMENT}),
    around AS (
        SELECT e.*, s.done, s.last_ts, s.last_type, lag(coalesce(s.done, 0L)) OVER file AS former,
               lead(coalesce(s.done, 0L)) OVER file AS following
        FROM entries e LEFT JOIN said s USING ({MESSAGE})
        WHERE e.settles
        WINDOW file AS (PARTITION BY {SEGMENT} ORDER BY entry)),
    in_flight AS (
        SELECT DISTINCT a.vhost, a.queue, a.priority, a.segment, a.seq
        FROM around a JOIN lifecycle l USING ({MESSAGE}) LEFT JOIN lives b USING ({SEGMENT})
        WHERE a.last OR (a.done IS NULL AND coalesce(a.former, 1L) > 0 AND coalesce(a.following, 1L) > 0 AND exists(
            coalesce(b.begun, array()), start -> start > greatest(l.published, a.last_ts, a.former)
            AND start <= coalesce(a.following, {{forever}}))
            AND (a.type NOT IN ('acked', 'rejected')
                 OR a.last_type <=> 'delivered' AND NOT exists(coalesce(b.begun, array()), start -> start > a.last_ts
                    AND start <= greatest(l.published, a.last_ts, a.former))))),
    closing AS (
        SELECT {SEGMENT}, c.ts FROM (SELECT {SEGMENT}, max(ts) AS ts FROM steps GROUP BY {SEGMENT}, run) c
        LEFT JOIN lives b USING ({SEGMENT}) LEFT JOIN segments o USING ({SEGMENT})
        WHERE coalesce(o.open, false) OR exists(coalesce(b.begun, array()), start -> start > c.ts)),
    acts AS (
        SELECT {MESSAGE}, s.type, s.failures AS count, count(*) AS said, count_if(c.ts IS NOT NULL) AS closing,
               count_if(s.after IN ('dead-lettered', 'dropped') AND s.after_reason = 'delivery_limit') AS died
        FROM steps s LEFT JOIN closing c USING ({SEGMENT}, ts)
        WHERE s.type = 'returned' OR (s.delivers AND s.redelivered AND NOT s.no_ack)
        GROUP BY {MESSAGE}, s.type, s.failures),
    notes AS (
        SELECT {MESSAGE}, count, count_if(type = 'returned') AS returned, count_if(type = 'handed out') AS handed,
               count_if(type IN ('set aside', 'parked')) AS aside
        FROM entries WHERE NOT settles GROUP BY {MESSAGE}, count),
    missing AS (
        SELECT {MESSAGE}, a.type, a.closing, a.said - CASE WHEN a.type = 'returned' THEN
                   coalesce(n.returned, 0)
                   + greatest(CASE WHEN coalesce(w.instead, true) THEN coalesce(n.aside, 0) ELSE 0 END, a.died)
                   ELSE coalesce(n.handed, 0) END
               AS missing
        FROM acts a LEFT JOIN notes n USING ({MESSAGE}, count)
        LEFT JOIN (SELECT vhost, queue, bool_or(NOT known OR delivery_limit IS NOT NULL OR groups OR retry OR stops)
                       AS instead FROM settings GROUP BY ALL) w USING (vhost, queue)),
    lacks AS (
        SELECT {MESSAGE}, bool_or(type = 'returned' AND missing > closing) AS returns,
               bool_or(type = 'delivered' AND missing > closing) AS hand_outs,
               bool_or(missing > 0 AND closing > 0) AS doubtful
        FROM missing GROUP BY {MESSAGE}),
    beside AS (
        SELECT {MESSAGE} FROM entries WHERE type IN ('set aside', 'parked')
        UNION SELECT {MESSAGE} FROM lifecycle JOIN segments USING ({SEGMENT}) WHERE redriven OR generation > 0),
    stray AS (
        SELECT {MESSAGE}, bool_or(type = 'returned') AS returns, bool_or(type = 'handed out') AS hand_outs FROM (
            SELECT {MESSAGE}, type FROM (
                SELECT {MESSAGE}, type, count, CASE type WHEN 'returned' THEN reason END AS reason, 1 AS more
                FROM entries WHERE type IN ('returned', 'handed out')
                UNION ALL SELECT {MESSAGE}, type, failures, reason, -1 FROM steps WHERE type = 'returned'
                UNION ALL SELECT {MESSAGE}, 'handed out', s.failures, null, -1
                FROM steps s LEFT JOIN beside w USING ({MESSAGE})
                WHERE s.delivers AND NOT s.no_ack AND (s.redelivered OR w.seq IS NOT NULL))
            GROUP BY {MESSAGE}, type, count, reason HAVING sum(more) > 0)
        GROUP BY {MESSAGE}),
    asides AS (
        SELECT l.vhost, l.queue, l.priority, l.segment, l.seq, c.ts IS NOT NULL AS closing
        FROM lifecycle l JOIN entered t USING ({MESSAGE}) JOIN said s USING ({MESSAGE})
        LEFT JOIN closing c ON c.vhost = l.vhost AND c.queue = l.queue AND c.priority = l.priority
         AND c.segment = l.segment AND c.ts = s.last_ts
        LEFT JOIN may_set_aside d ON d.vhost = l.vhost AND d.queue = l.queue
        WHERE l.ended = 'unacked' AND t.last.type IN ('set aside', 'parked')
          AND NOT (d.queue IS NOT NULL AND t.last.count = least(s.last_failures + 1, 65535))),
    compared AS (
        SELECT {MESSAGE}, l.published, coalesce(t.settled, 0) AS told, coalesce(s.settled, 0) AS said,
               coalesce(t.returned, 0) AS told_returned, coalesce(s.returned, 0) AS said_returned,
               coalesce(t.handed, 0) AS told_handed, coalesce(s.handed, 0) AS said_handed,
               coalesce(s.delivered, 0) AS delivered, t.seq IS NOT NULL AS entered,
               l.covered, l.position < g.said_passed AS passed, l.redriven,
               l.position = max(CASE WHEN l.position < g.said_passed THEN l.position END) OVER (PARTITION BY {SEGMENT})
               AND (g.open OR exists(coalesce(b.begun, array()), start -> start > l.published)) AS last_passed,
               t.ended <=> s.ended AS same_end, coalesce(b.power_lost, false) AS power_lost,
               g.said_settled IS NOT NULL AS has_acks, f.seq IS NOT NULL AS in_flight,
               coalesce(x.returns, false) AS stray, g.generation = 0 AND coalesce(m.returns, false) AS returns,
               (g.generation = 0 AND coalesce(m.hand_outs, false)) OR coalesce(x.hand_outs, false) AS hand_outs,
               coalesce(t.moved, false) OR (coalesce(t.settled = 1 AND t.behind, false) AND {BEHIND})
                   OR coalesce(NOT y.closing, false) AS moved,
               (g.generation = 0 AND coalesce(m.doubtful, false)) OR coalesce(y.closing, false) AS doubtful
        FROM lifecycle l JOIN segments g USING ({SEGMENT}) LEFT JOIN lives b USING ({SEGMENT})
        LEFT JOIN entered t USING ({MESSAGE}) LEFT JOIN said s USING ({MESSAGE}) LEFT JOIN in_flight f USING ({MESSAGE})
        LEFT JOIN stray x USING ({MESSAGE}) LEFT JOIN lacks m USING ({MESSAGE})
        LEFT JOIN asides y USING ({MESSAGE})
        WHERE coalesce(g.damage, '') NOT LIKE '%acks.%'),
    judged AS (
        SELECT *, CASE WHEN NOT has_acks THEN 'lack of an acks file'
                       WHEN told <> said THEN 'settlements' WHEN told > 0 AND NOT same_end THEN 'ends'
                       WHEN stray OR returns THEN 'returns' WHEN hand_outs THEN 'hand-outs' WHEN moved THEN 'order'
                       WHEN delivered > 0 AND NOT (passed OR redriven)
                           THEN 'deliveries, which the cursor has not passed'
                       WHEN delivered = 0 AND NOT entered AND passed THEN 'deliveries, and the cursor has passed it'
                       WHEN doubtful THEN 'last event of a life' END AS wrong
        FROM compared WHERE covered)
    SELECT *, power_lost OR NOT has_acks OR wrong = 'last event of a life' OR (told = 1 AND said = 0 AND in_flight)
           OR (wrong = 'deliveries, and the cursor has passed it' AND last_passed) AS excused
    FROM judged"""

FOUND = """
    SELECT vhost, queue, priority, seq, segment, published AS ts, 1L AS weight,
           format_string('acks and journal differ in its %s: %d and %d', wrong,
                         CASE wrong WHEN 'returns' THEN told_returned WHEN 'hand-outs' THEN told_handed ELSE told END,
                         CASE wrong WHEN 'returns' THEN said_returned WHEN 'hand-outs' THEN said_handed ELSE said END)
           AS detail
    FROM agreed WHERE wrong IS NOT NULL AND NOT excused"""

CHECKED = "SELECT vhost, queue, count(*) AS checked FROM agreed GROUP BY ALL"
