"""What clients do at queues with message groups, retries, parks, keys, replays and redrives: a part of ``samples``.

    grouped     message groups whose owners are told tokens; returned messages wait 40 ms; 27 fails too often, and its
                group is parked, then released
    tried       no groups: returned messages wait, and those behind them do not
    orders      message groups; dead letters go to ``late``, from where some come back to their places
    late        dead letters of ``orders``, in the same groups
    keyed       deduplication: some messages come twice
    tasks       deduplication of what waits: some come again while the first one waits, also since its replay
    replayed    settled messages stay; some are replayed, with the broker killed between
    again       the same, with three priorities and delivery limit 1
    regrouped   message groups with tokens, retries and parks, in which settled messages are replayed
    retried     the same without groups: it stops at a message that has failed too often since its replay
"""

GROUPS = 8
KEYS = 60                           # the window of ``keyed``
JOURNAL = {"x-order-journal": True}
GROUPED = JOURNAL | {"x-message-group": "exclusive", "x-message-group-header": "customer"}
RETRY = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 40, "x-delayed-retry-max": 40}
QUEUES = {
    "grouped": GROUPED | RETRY | {"x-delivery-limit": 2, "x-delivery-limit-action": "park-group"},
    "tried": JOURNAL | RETRY,
    "orders": GROUPED | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "late"},
    "late": JOURNAL | {"x-message-group": "exclusive", "x-message-group-header": "x-group-id"},
    "keyed": JOURNAL | {"x-message-deduplication": True, "x-cache-size": KEYS},
    "tasks": JOURNAL | {"x-message-deduplication": True, "x-deduplication-scope": "waiting",
                        "x-retention-bytes": 1 << 30},
    "replayed": JOURNAL | {"x-retention-bytes": 1 << 30},
    "again": JOURNAL | {"x-retention-bytes": 1 << 30, "x-max-priority": 2, "x-delivery-limit": 1},
    "regrouped": GROUPED | RETRY | {"x-retention-bytes": 1 << 30, "x-delivery-limit": 2,
                                    "x-delivery-limit-action": "park-group"},
    "retried": JOURNAL | RETRY | {"x-retention-bytes": 1 << 30, "x-delivery-limit": 2,
                                  "x-delivery-limit-action": "block"},
}
TOLD = {"x-group-info": True}       # argument of a consumer
STUBBORN = 27                       # of ``grouped``
STUBBORN_AGAIN = 9                  # of ``regrouped``
STUBBORN_RETRIED = 2                # of ``retried``


def customer_of(number):
    return f"c{number % GROUPS}"


def _headers(number):
    return {"customer": customer_of(number)}


def _tasks(number):
    return {"x-deduplication-header": f"k{number % 100}"}


def _decide_grouped(number, redelivered):
    if number == STUBBORN or (number % 11 == 5 and not redelivered):
        return "requeue"
    return "nack" if number % 13 == 6 and not redelivered else "ack"


def _decide_orders(number, redelivered):
    return "ack" if redelivered else {1: "reject", 4: "reject", 7: "requeue"}.get(number % 9, "ack")


def _decide_again(number, redelivered):
    return "nack" if number % 7 == 3 else "ack"


class Picky:
    """Returns these messages the first time that it has them, and others each time."""

    def __init__(self, once=(), always=()):
        self.once, self.always = set(once), frozenset(always)
        self.acked, self.failures = 0, 0                # ``failures`` of those that it always returns

    def __call__(self, number, redelivered):
        if number in self.always:
            self.failures += 1
            return "requeue"
        if number in self.once:
            self.once.remove(number)
            return "nack" if number % 2 else "requeue"
        self.acked += 1
        return "ack"

    def work(self, worker, acked, failures=0):
        """Let it settle until it has acked and failed so often."""
        while self.acked < acked or self.failures < failures:
            worker.work(1, self)
        return worker


def first_life(story, control):
    publish, worker = story.publisher.publish, story.worker
    publish("grouped", range(200), headers=_headers)
    one, two = worker("grouped", 4, "a", TOLD), worker("grouped", 3, "b", TOLD)
    for _ in range(6):
        one.work(8, _decide_grouped)
        two.work(8, _decide_grouped)
    while "parked" not in control("group", "show", "grouped", customer_of(STUBBORN)):
        one.work(4, _decide_grouped)        # Its tries come 40 ms apart, so this depends on the machine's pace.
        two.work(3, _decide_grouped)
    one.take(1).vanish()
    two.work(8, _decide_grouped).take(1)

    publish("tried", range(140))
    patient = worker("tried", 3, "patient").work(60, _decide_grouped)

    publish("orders", range(160), headers=_headers)
    one, two = worker("orders", 4, "x"), worker("orders", 2, "y")
    for _ in range(4):
        one.work(10, _decide_orders)
        two.work(6, _decide_orders)
    publish("keyed", range(80), headers=lambda number: {"x-deduplication-header": f"k{number}"})
    publish("keyed", range(40, 120, 2), headers=lambda number: {"x-deduplication-header": f"k{number}"})
    worker("keyed", 5, "once").work(30).take(5)
    publish("tasks", range(70), headers=_tasks)
    worker("tasks", 5, "doer").work(60).close()
    control("queue", "replay", "tasks", "--seqs", "5-20")
    publish("tasks", range(100, 150), headers=_tasks)
    worker("tasks", 5, "doer").work(12).take(2)
    publish("replayed", range(140))
    worker("replayed", 5, "reader").work(90).close()
    control("queue", "replay", "replayed", "--seqs", "5-12,40")
    worker("replayed", 5, "again").work(20).take(5)
    patient.work(20, _decide_grouped).take(3)
    publish("again", range(90), priority=lambda number: number * 5 % 3)
    worker("again", 3, "once").work(95, _decide_again).close()
    control("queue", "replay", "again", "--seqs", "5-30")
    worker("again", 2, "more").work(12, _decide_again).take(2)
    _replayed_in_groups(story, control)


def _replayed_in_groups(story, control):
    """Two are parked since their replay: of ``regrouped`` two more of the group wait behind."""
    story.publisher.publish("regrouped", range(140), headers=_headers)
    one, two = story.worker("regrouped", 4, "a", TOLD), story.worker("regrouped", 3, "b", TOLD)
    first = Picky(range(3, 140, 11))
    for _ in range(5):
        one.work(10, first)
        two.work(8, first)
    two.vanish()
    first.work(one, 140)
    control("queue", "replay", "regrouped", "--seqs", "5-30")
    two = story.worker("regrouped", 3, "b", TOLD)
    again = Picky(range(4, 30, 5), {STUBBORN_AGAIN})
    one.work(4, again)
    two.work(4, again).vanish()
    again.work(one, 23)
    while "parked" not in control("group", "show", "regrouped", customer_of(STUBBORN_AGAIN)):
        again.work(one, 23, again.failures + 1)     # It has failed once more if ``two`` had it.
    control("queue", "replay", "regrouped", "--seqs", "31-44")
    one.work(6).take(2)
    story.publisher.publish("retried", range(70))
    patient = Picky(range(3, 50, 11)).work(story.worker("retried", 3, "patient"), 70)
    control("queue", "replay", "retried", "--seqs", "5-20")
    Picky(range(4, 20, 5)).work(patient, 16)
    control("queue", "replay", "retried", "--seqs", "1-4")
    Picky(always={STUBBORN_RETRIED}).work(patient, 3, 3)
    story.publisher.publish("retried", range(70, 140))


def second_life(story, control):
    worker = story.worker
    control("group", "release", "grouped", customer_of(STUBBORN))
    worker("grouped", 4, "c", TOLD).work(50, lambda number, redelivered: (
        "ack" if number == STUBBORN else _decide_grouped(number, redelivered))).take(1)
    worker("tried", 3, "patient").work(30, _decide_grouped).take(3)
    control("message", "redrive", "late", "--group", customer_of(4))
    worker("orders", 4, "z").work(20, lambda number, redelivered: "ack").take(2)
    worker("keyed", 5, "once").work(40).take(5)
    story.publisher.publish("tasks", range(200, 225), headers=_tasks)
    worker("tasks", 5, "doer").work(20).take(2)
    control("queue", "replay", "replayed", "--seqs", "1-3,60-66")
    worker("again", 2, "more").work(10, _decide_again).take(2)
    control("queue", "replay", "again", "--seqs", "40-55")
    control("group", "release", "regrouped", customer_of(STUBBORN_AGAIN))
    teams = worker("regrouped", 4, "c", TOLD).work(8)
    control("queue", "replay", "regrouped", "--seqs", "41-70")
    teams.work(20, Picky(range(41, 70, 4))).take(2)
    control("queue", "release", "retried")
    patient = worker("retried", 3, "patient").work(20)
    control("queue", "replay", "retried", "--seqs", "21-36")
    patient.work(14, Picky(range(21, 36, 4))).take(2)


def third_life(story, control):
    worker = story.worker
    worker("grouped", 4, "d", TOLD).work(20, lambda number, redelivered: "ack").take(1)
    control("message", "redrive", "late")
    worker("orders", 4, "w").work(20, lambda number, redelivered: "ack").take(2)
    worker("tried", 3, "patient").work(10, _decide_grouped).take(1)
    story.publisher.publish("keyed", range(100, 130), headers=lambda number: {"x-deduplication-header": f"k{number}"})
    worker("keyed", 5, "once").work(10).take(5)
    control("queue", "replay", "tasks", "--seqs", "21-30")
    story.publisher.publish("tasks", range(315, 335), headers=_tasks)
    worker("tasks", 5, "doer").work(10).take(1)
    worker("replayed", 5, "reader").work(15).take(2)
    worker("again", 2, "last").work(12, _decide_again).take(2)
    worker("regrouped", 4, "d", TOLD).work(6).take(1)
    worker("retried", 3, "patient").work(20).take(1)
