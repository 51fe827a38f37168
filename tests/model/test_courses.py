"""The state machines of test_model and test_rules on long courses of likely events: what needs many messages before it
can go wrong.

BROKERD_MODEL_COURSES makes the search longer; a failing course is repeated by its seed.
"""

import os
import random

import pytest
from tests.model.test_model import FAN, QUEUES, PlaneMachine
from tests.model.test_rules import CHOICES, PASSING, RulesMachine

from brokerd.store import compaction

COURSES = int(os.environ.get("BROKERD_MODEL_COURSES", "12"))
FIRST = int(os.environ.get("BROKERD_MODEL_FIRST_COURSE", "0"))
EVENTS = 300
NAMES = [*QUEUES, *QUEUES, FAN]
LARGE = [0, 1, 10, 100, 500, 1000, 1500, 1900, 4500]


def pick(rng):
    return rng.randrange(1 << 16)


def answer(rng):
    return pick(rng), pick(rng), rng.random() < 0.2, rng.choice(["ack", "ack", "ack", "nack", "reject", "requeue"])


def command(rng):
    if rng.random() < 0.5:
        return "publish", rng.choice(NAMES), rng.choice(LARGE), rng.random() < 0.5
    return "settle", *answer(rng)[1:]


# Event: how often, and its arguments.
EVENTS_BY_NAME = {
    "publish_many": (12, lambda r: {"pick": pick(r), "names": r.choices(NAMES, k=r.randrange(1, 25)),
                                    "size": r.choice(LARGE), "persistent": r.random() < 0.5}),
    "settle_some": (14, lambda r: {"answers": [answer(r) for _ in range(r.randrange(1, 12))]}),
    "chunk": (10, lambda r: {"pick": pick(r), "cut": pick(r),
                             "commands": [command(r) for _ in range(r.randrange(1, 10))]}),
    "in_pieces": (5, lambda r: {"pick": pick(r), "cut": pick(r), "name": r.choice(NAMES), "size": r.choice(LARGE),
                                "persistent": r.random() < 0.5}),
    "get": (4, lambda r: {"pick": pick(r), "which": pick(r), "no_ack": r.random() < 0.5}),
    "consume": (3, lambda r: {"pick": pick(r), "which": pick(r), "no_ack": r.random() < 0.2,
                              "priority": r.choice([0, 0, 0, 1, -3])}),
    "cancel": (3, lambda r: {"pick": pick(r), "which": pick(r)}),
    "prefetch": (3, lambda r: {"pick": pick(r), "count": r.randrange(8)}),
    "global_prefetch": (2, lambda r: {"pick": pick(r), "count": r.choice([0, 0, 1, 3, 6])}),
    "flow": (3, lambda r: {"pick": pick(r), "flow": r.random() < 0.7}),
    "recover": (1, lambda r: {"pick": pick(r)}),
    "settle_what_may_be_unknown": (1, lambda r: {"pick": pick(r), "tag": r.randrange(60),
                                                 "multiple": r.random() < 0.3}),
    "open_another_channel": (1, lambda r: {"pick": pick(r), "number": r.randrange(2, 5)}),
    "close_channel": (1, lambda r: {"pick": pick(r)}),
    "lose_connection": (1, lambda r: {"pick": pick(r)}),
    "pause_or_resume_writing": (3, lambda r: {"pick": pick(r)}),
    "purge": (0.3, lambda r: {"which": pick(r)}),
    "delete_queue": (0.3, lambda r: {"which": pick(r)}),
    "rest": (2, lambda r: {"which": pick(r)}),
    "collect_garbage": (2, lambda r: {}),
    "begin_compaction": (8, lambda r: {"which": pick(r), "pick": pick(r)}),
    "finish_compaction": (6, lambda r: {}),
    "begin_sync": (4, lambda r: {}),
    "end_sync": (4, lambda r: {}),
    "restart": (1, lambda r: {}),
}


def rules(rng):
    return {name: rng.choice(CHOICES[name]) for name in CHOICES if rng.random() < 0.4}


EVENTS_WITH_RULES = EVENTS_BY_NAME | {
    "set_rules": (3, lambda r: {"which": pick(r), "rules": rules(r)}),
    "time_passes": (5, lambda r: {"ms": r.choice(PASSING)}),
    "look_for_overdue": (3, lambda r: {"ms": r.choice(PASSING)}),
    "keep_dead": (2, lambda r: {"which": pick(r), "keeps": r.random() < 0.6}),
    "be_done_with_dead": (6, lambda r: {"which": pick(r), "pick": pick(r)}),
    "browse": (2, lambda r: {"which": pick(r), "start": pick(r), "count": r.choice([1, 5, 1000])}),
    "remove": (4, lambda r: {"which": pick(r), "pick": pick(r)}),
}


def may(machine, name):
    return {"begin_sync": not machine.syncing, "end_sync": machine.syncing,
            "begin_compaction": machine.compaction is None,
            "finish_compaction": machine.compaction is not None,
            "be_done_with_dead": any(queue.kept for queue in machine.queues.values())}.get(name, True)


def run(machine, rng, events, monkeypatch, **options):
    monkeypatch.setattr(compaction, "LIVE_PERCENT_MAX", 100)
    weights = [weight for weight, _ in events.values()]
    try:
        machine.begin(segment=rng.choice([4096, 8192, 16384]), **options)
        for name in rng.choices(list(events), weights, k=EVENTS):
            if may(machine, name):
                getattr(machine, name)(**events[name][1](rng))
    finally:
        machine.teardown()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COURSES))
def test_a_long_course_goes_as_the_model_says(seed, monkeypatch):
    run(PlaneMachine(), random.Random(seed), EVENTS_BY_NAME, monkeypatch)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COURSES))
def test_a_long_course_of_queues_with_rules_goes_as_the_model_says(seed, monkeypatch):
    rng = random.Random(seed)
    run(RulesMachine(), rng, EVENTS_WITH_RULES, monkeypatch, seed=seed, asked=[rules(rng) for _ in QUEUES])
