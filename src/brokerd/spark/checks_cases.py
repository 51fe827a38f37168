"""Facts about each queue that decide the verdicts of engine B besides the findings, for ``checks``.

    query(audits)   SQL: a row for each queue, with the facts that the verdicts of these audits need, and no others
    applies(...)    whether an audit can say anything about a queue
    verdict(...)    the verdict and its reason
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd.audit import many
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import NEED_ACKS, verdict_of
from brokerd.spark import checks_holders

# Audits in which a loss of power or a kill excuses findings, and the fact that says whether it excused any.
EXCUSED = {"delivery_after_settle": "delivered_again", "double_settle": "settled_again", "holes": "lost",
           "delivery_limit": "handed_in_doubt", "limit_kept": "failed_in_doubt", "agreement": "agreed_in_doubt",
           "numbers": "stale", "time_order": "stale", "channel_order": "stale", "consumers": "unknown_consumers",
           "counters": "not_whole"}

# Audits of some queues alone, and the fact that says whether this is one.
NEEDED = {"priority": "has_plain_levels", "channel_order": "has_levels", "after_cut": "has_cut", "counters": "has_cut",
          "single_active": "has_single_active", "prefetch": "has_settings", "consumers": "has_settings",
          "delivery_limit": "has_limit", "limit_kept": "has_limit", "fifo": "in_sequence",
          "returned_first": "in_sequence"}

# Without a journal, the acks show a message that was settled twice, and some first deliveries are known: audits that
# need events, and the fact that says what they miss.  The others miss all that the journal does not cover.
UNKNOWN_LIVES = {"fifo": "unsure", "double_settle": "partly"}


class Facts(NamedTuple):
    """Facts that one query has."""

    columns: dict[str, str]     # fact -> its value, also where the query has no row for a queue
    rows: str                   # a query with at most one row for a queue


def _count(name: str) -> str:
    return f"coalesce({name}, 0L)"


def _is(name: str) -> str:
    return f"coalesce({name}, false)"


# uncovered: messages that the journal does not cover; unsure, partly: of these, see UNKNOWN_LIVES
# spoiled: kinds of damaged files
FACTS = (
    Facts({"has_plain_levels": "(q.levels > 1 OR coalesce(q.max_priority, 0) > 0) AND NOT coalesce(waits, false)"},
          "SELECT vhost, queue, bool_or(groups OR retry OR stops) AS waits FROM settings GROUP BY ALL"),
    Facts({"has_levels": "q.levels > 1 OR coalesce(q.max_priority, 0) > 0", "has_cut": "q.cut IS NOT NULL"},
          "SELECT vhost, queue FROM queues"),
    Facts({**{name: _is(name) for name in ("has_limit", "has_single_active", "has_settings")},
           "in_sequence": "coalesce(in_sequence, true)"}, """
    SELECT vhost, queue, bool_or(delivery_limit IS NOT NULL) AS has_limit, bool_or(single_active) AS has_single_active,
           bool_or(known) AS has_settings, NOT bool_or(groups) AS in_sequence
    FROM settings GROUP BY ALL"""),
    Facts({name: _count(name) for name in ("uncovered", "partly")}, """
    SELECT vhost, queue, count_if(NOT covered) AS uncovered, count_if(NOT covered AND begun IS NOT NULL) AS partly
    FROM lifecycle JOIN segments USING (vhost, queue, priority, segment)
    GROUP BY ALL"""),
    Facts({"unsure": _count("unsure")}, """
    SELECT vhost, queue, count_if(NOT covered AND NOT coalesce(sure, false)) AS unsure
    FROM lifecycle LEFT JOIN firsts USING (vhost, queue, priority, segment, seq)
    GROUP BY ALL"""),
    Facts({"spoiled": "coalesce(spoiled, array())"}, """
    SELECT vhost, queue, collect_set(what) AS spoiled
    FROM (SELECT vhost, queue, what FROM wrong UNION ALL SELECT vhost, queue, 'journal' FROM orphans)
    GROUP BY ALL"""),
    Facts({"unknown_gaps": _is("unknown_gaps")},
          "SELECT vhost, queue, bool_or(unknown) AS unknown_gaps FROM gaps GROUP BY ALL"),
    Facts({"lost": _is("lost")}, "SELECT vhost, queue, bool_or(lost) AS lost FROM absent GROUP BY ALL"),
    Facts({"stale": _is("stale")}, "SELECT DISTINCT vhost, queue, true AS stale FROM stale"),
    Facts({"not_whole": "NOT coalesce(whole, false)"}, "SELECT vhost, queue, whole FROM whole"),
    Facts({"unknown_consumers": _is("unknown_consumers")},
          f"SELECT vhost, queue, true AS unknown_consumers FROM ({checks_holders.UNKNOWN})"),
    Facts({name: _is(name) for name in ("delivered_again", "settled_again")}, """
    SELECT vhost, queue, bool_or(delivers) AS delivered_again, bool_or(settles) AS settled_again
    FROM steps WHERE ts > done AND excused GROUP BY ALL"""),
    Facts({"agreed_in_doubt": _is("agreed_in_doubt")}, """
    SELECT vhost, queue, bool_or(wrong IS NOT NULL AND excused) AS agreed_in_doubt FROM agreed GROUP BY ALL"""),
    Facts({name: _is(name) for name in ("handed_in_doubt", "failed_in_doubt")}, """
    SELECT vhost, queue, bool_or(handed > bound + 1 AND handed <= bound + 1 + doubtful) AS handed_in_doubt,
           bool_or(covered AND failed > bound AND failed - doubtful <= bound
                   AND ended NOT IN ('ready', 'dead-lettered', 'dropped')) AS failed_in_doubt
    FROM limited GROUP BY ALL"""),
)


def _needed(audit: str, needs: str) -> set[str]:
    """The facts on which the verdict of an audit depends."""
    found = {facts[audit] for facts in (EXCUSED, NEEDED) if audit in facts}
    if needs == "events":
        found |= {"uncovered", UNKNOWN_LIVES.get(audit, "uncovered")}
    if needs or audit in NEED_ACKS or audit == "holes":
        found.add("spoiled")
    return found | {"unknown_gaps"} if audit == "holes" else found


def query(audits: Mapping[str, str]) -> str:
    """SQL for a row for each queue: vhost, queue, and the facts of these audits.  ``audits``: what each one needs."""
    wanted = set().union(*(_needed(audit, needs) for audit, needs in audits.items()))
    chosen = [facts for facts in FACTS if wanted & facts.columns.keys()]
    columns = [f"{value} AS {name}" for facts in chosen for name, value in facts.columns.items()]
    joins = [f"LEFT JOIN ({facts.rows}) USING (vhost, queue)" for facts in chosen]
    return "\n".join((f"SELECT {', '.join(('vhost', 'queue', *columns))}", "FROM queues q", *joins))


def applies(audit: str, case: Mapping[str, Any], options: Options) -> bool:
    """Whether this audit can say anything about a queue."""
    if audit not in NEEDED or (NEEDED[audit] == "has_limit" and options.delivery_limit is not None):
        return True
    return bool(case[NEEDED[audit]])


def verdict(audit: str, needs: str, case: Mapping[str, Any], found: int) -> dict[str, str]:
    """The verdict and its reason.  ``needs``: what the audit needs; ``case``: the facts about its queue."""
    doubts, spoiled = [], set(case.get("spoiled", ()))
    if needs == "events" and case[UNKNOWN_LIVES.get(audit, "uncovered")]:
        doubts.append(f"no order journal covers the whole life of {many(case['uncovered'], 'message')}")
    if audit in EXCUSED and case[EXCUSED[audit]]:
        doubts.append("power was lost, or a broker was killed")
    if (needs and "msgs" in spoiled) or (needs == "events" and "journal" in spoiled):
        doubts.append("files are missing or damaged")
    if audit in NEED_ACKS and "acks" in spoiled:
        doubts.append("acks are missing or damaged")
    if audit == "holes" and "msgs" in spoiled:
        doubts.append("records are missing or damaged")
    if audit == "holes" and case["unknown_gaps"]:
        doubts.append("without a journal, settled messages leave no trace")
    reason = f"{found} found" if found else "; ".join(doubts)
    return {"verdict": verdict_of(audit, found, bool(doubts)), "reason": reason}
