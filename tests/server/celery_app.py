"""Celery applications of tests/server/test_celery.py: what a worker runs, and what the tests call.

BROKER is the broker's URL and RESULTS a directory for the results of chords, which the backend rpc:// has none of.
"""

import os

from celery import Celery

BROKER = os.environ.get("BROKER", "memory://")
COMMON = {
    "broker_url": BROKER,
    "broker_connection_retry_on_startup": True,
    "broker_connection_timeout": 60,
    "worker_prefetch_multiplier": 1,
    "task_acks_late": True,
    "task_publish_retry": False,
    "result_expires": 60,
    "worker_hijack_root_logger": False,
}

app = Celery("over_rpc", set_as_current=False)
app.conf.update(COMMON, result_backend="rpc://", task_default_queue="celery")

mortals = Celery("over_rpc_too", set_as_current=False)
mortals.conf.update(COMMON, result_backend="rpc://", task_default_queue="mortals")

chords = Celery("over_files", set_as_current=False)
chords.conf.update(COMMON, result_backend=f"file://{os.environ.get('RESULTS', '')}", task_default_queue="chords")


@app.task
def add(a, b):
    """a + b."""
    return a + b


@app.task(bind=True, max_retries=5)
def stubborn(self, failures):
    """Fail as often as told, then say how often it was tried."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.05)
    return self.request.retries + 1


@app.task
def broken():
    """Fail."""
    raise KeyError("broken")


@app.task
def order(number, path):
    """Write down that it was run."""
    with open(path, "a") as file:
        file.write(f"{number}\n")


@mortals.task
def fatal(path):
    """Take the worker's process down the first time."""
    if not os.path.exists(path):
        with open(path, "w"):
            pass
        os._exit(9)
    return "survived"


@chords.task
def double(number):
    """Twice the number."""
    return 2 * number


@chords.task
def total(numbers):
    """Their sum."""
    return sum(numbers)
