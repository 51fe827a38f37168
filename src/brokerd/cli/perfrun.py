"""The runs of brokerperf: prepare the broker, put load on it with links, count, and report.

Every run takes plain values and returns a dict of figures, ready for JSON; progress goes to a
`Say`.  An interrupt ends a run early, with the figures so far.  Knows nothing of options, exit codes and terminals.
"""

import dataclasses
import math
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from brokerd.audit import many
from brokerd.cli._perf import Control, Histogram, Link, monotonic_ns
from brokerd.cli.perfclient import (
    Address,
    Client,
    PerfError,
    declare_arguments,
    method,
    part,
    publish_frames,
    qos_arguments,
)
from brokerd.cli.perfproc import Usage, usage
from brokerd.cli.perfsample import Say
from brokerd.cli.perfwatch import Load, Watch

Figures = dict[str, Any]

POLL_SECONDS = 0.002
# A ring of encoded messages holds at least this many octets, so that a write rarely ends at the ring's end.
RING_OCTETS = 256 << 10
RING_MOST = 256 << 20
# How many producers a drain can tell apart.
KNOWN_PRODUCERS = 256
# What a drain that must leave messages prefetches, and how many it acknowledges at once, unless it was told otherwise.
DRAIN_PREFETCH, DRAIN_ACKS = 256, 64
OF_PUBLISHING = ("producers", "consumers", "queues", "size", "published", "publish_rate")


def broker_figures(before: Usage, after: Usage, messages: int) -> Figures:
    """The CPU time and memory of the broker's processes, in all and per million messages if there were any."""
    cpu = after.cpu_s - before.cpu_s
    figures: Figures = {"cpu_s": round(cpu, 3), "rss_kb": after.rss_kb, "rss_anon_kb": after.rss_anon_kb,
                        "rss_peak_kb": after.rss_peak_kb}
    if messages:
        figures["cpu_s_per_million"] = round(cpu / messages * 1e6, 4)
    return figures


def own_cpu() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# -- topology

@contextmanager
def topology(load: Load) -> Iterator[Client]:
    """Declare and bind the queues and the exchange of a load; delete them afterwards, unless `keep` is set."""
    client = Client(load.address)
    names = [load.queue_name(index) for index in range(load.queues)]
    try:
        if not load.keep:
            remove(client, load, names)
        if load.exchange_type:
            client.declare_exchange(load.exchange, load.exchange_type)
        for name in names:
            client.declare_queue(name, load.durable, load.queue_args)
            if load.exchange:
                for key in load.expand(load.binding_keys) or [name]:
                    client.bind(name, load.exchange, key)
        yield client
    finally:
        client.drop()
        if not load.keep:
            # With a new connection, because the first one may have failed.  If this fails too, the
            # error of the run says more than the queues that stay behind.
            with suppress(PerfError):
                cleaner = Client(load.address)
                remove(cleaner, load, names)
                cleaner.drop()


def remove(client: Client, load: Load, names: list[str]) -> None:
    """Delete the queues of a load, and its exchange if it declared one."""
    for name in names:
        client.delete_queue(name)
    if load.exchange_type:
        client.delete_exchange(load.exchange)


def ready_messages(client: Client, load: Load) -> int:
    """How many messages are ready in the queues of the load."""
    return sum(client.declare_queue(load.queue_name(index), passive=True) for index in range(load.queues))


# -- links

def message_ring(load: Load, producer: int, frame_max: int) -> list[tuple[bytes, int]]:
    """The messages one producer publishes in turn, encoded, each with the offset of its body."""
    if load.exchange or load.routing_keys:
        keys = load.expand(load.routing_keys) or [load.queue_name(q) for q in load.queues_of(producer, load.producers)]
    else:
        keys = [load.queue_name(index) for index in load.queues_of(producer, load.producers)]
    turn = [publish_frames(load.exchange, key, load.size, load.persistent, frame_max) for key in keys]
    octets = sum(len(frames) for frames, _ in turn)
    if octets > RING_MOST:
        raise PerfError(f"{len(keys)} routing keys times {load.size} octets are more than {RING_MOST >> 20} MiB")
    return turn * math.ceil(RING_OCTETS / octets)


def producer_link(load: Load, index: int, control: Control, clients: list[Client]) -> Link:
    """Open the connection of one producer."""
    client = Client(load.address)
    clients.append(client)
    if load.confirm:
        client.confirm_select()
    link = client.hand_over(control)
    link.load(message_ring(load, index, client.frame_max), index, load.count, load.confirm, load.size >= 8,
              load.measure, bool(load.measure and load.confirm))
    return link


def consumer_link(load: Load, index: int, control: Control, clients: list[Client], producers: int) -> Link:
    """Open the connection of one consumer; deliveries may begin at once."""
    client = Client(load.address)
    clients.append(client)
    if load.prefetch:
        client.qos(load.prefetch)
    for queue in load.queues_of(index, load.consumers):
        client.consume(load.queue_name(queue), str(queue), load.ack == 0, no_wait=True, consumer=load.consumer_args)
    link = client.hand_over(control)
    link.expect(load.ack, load.queues, producers, load.verify_order, load.measure)
    return link


def start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """Run `target` in a thread that does not keep the process alive."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


# -- throughput, latency, drain

def flow(load: Load, say: Say) -> Figures:
    """Publish, consume, or both, and measure.  PerfError if the run fails."""
    with topology(load) as client:
        backlog = ready_messages(client, load) if load.keep else 0
        return _run(load, client, say, backlog)


def drain(load: Load, say: Say) -> Figures:
    """Consume the messages that are in the queues already, `count` of them or all, and measure.

    Messages over `count` stay; with `keep` also those that came meanwhile.  Then consumers acknowledge, because what is
    delivered without acks is gone.  Only empty queues are deleted.
    """
    client = Client(load.address)
    try:
        backlog = ready_messages(client, load)
        if not backlog and not load.count:
            raise PerfError("nothing is in the queues")
        wanted = load.count or backlog
        exact = bool(load.count or load.keep)
        if exact:
            prefetch = load.prefetch or max(min(DRAIN_PREFETCH, wanted), load.ack)
            load = dataclasses.replace(load, ack=load.ack or min(DRAIN_ACKS, prefetch), prefetch=prefetch)
        run = _run(load, client, say, wanted, exact)
        left = ready_messages(client, load)
        figures: Figures = {"consumers": load.consumers, "queues": load.queues, "found": backlog, "wanted": wanted}
        figures |= {name: value for name, value in run.items() if name not in OF_PUBLISHING} | {"left": left}
        if not load.keep:
            figures["deleted"] = not left
            if not left:
                remove(client, load, [load.queue_name(index) for index in range(load.queues)])
        return figures
    finally:
        client.drop()


def _run(load: Load, client: Client, say: Say, backlog: int, exact: bool = False) -> Figures:
    clients: list[Client] = []
    control, interrupted = Control(), False
    control.producers = max(1, load.producers)
    control.limited, control.budget = exact, backlog
    known = load.producers or KNOWN_PRODUCERS
    with ExitStack() as stack:
        stack.callback(lambda: part(clients))
        publishing = [producer_link(load, index, control, clients) for index in range(load.producers)]
        before, own = usage(list(load.pids)), own_cpu()
        control.start_ns = monotonic_ns()
        if load.rate:
            control.gap_ns = 1e9 * load.producers / load.rate
        control.until_ns = control.start_ns + int(load.seconds * 1e9) if load.seconds else 0
        control.measure_ns = control.start_ns + int(load.warmup * 1e9)
        consuming = [consumer_link(load, index, control, clients, known) for index in range(load.consumers)]
        watch = Watch(load, publishing, consuming, say, backlog)
        sync = method(1, (60, 10), qos_arguments(load.prefetch))
        threads = [start(link.consume, sync) for link in consuming]
        for index, link in enumerate(publishing):
            threads.append(start(link.publish, *barrier(load, index)))
        try:
            _watch(watch, backlog)
        except KeyboardInterrupt:
            interrupted = True
            say.line("interrupted: what was measured so far")
        finally:
            after, spent = usage(list(load.pids)), own_cpu() - own
            control.stop = True
            for thread in threads:
                thread.join()
        watch.check()
        watch.finish()
    figures = _figures(load, watch, control.start_ns, backlog, interrupted)
    messages = max(figures["published"], figures["consumed"])
    figures["load_cpu_s_per_million"] = round(spent / messages * 1e6, 4) if messages else None
    if load.pids:
        figures["broker"] = broker_figures(before, after, messages)
    if not watch.stalled and load.keep:
        figures["left"] = ready_messages(client, load)
    return figures


def barrier(load: Load, producer: int) -> tuple[bytes, int]:
    """Requests that the broker answers only after all earlier messages of the producer, and their number."""
    queues = range(load.queues) if load.exchange else load.queues_of(producer, load.producers)
    return b"".join(method(1, (50, 10), declare_arguments(load.queue_name(q), False, None, True))
                    for q in queues), len(queues)


def _watch(watch: Watch, backlog: int) -> None:
    """Wait until all messages are published and have arrived, the time is over, or no message moves."""
    load = watch.load
    while not watch.stalled:
        watch.check()
        if load.producers and all(link.finished for link in watch.producers):
            lost = watch.total("nacked") + watch.total("returned")
            expected = backlog + (watch.total("published") - lost) * load.copies
            if not load.consumers or watch.total("received") >= expected:
                return
        if not load.producers:
            if backlog and watch.total("received") >= backlog:
                return
            if load.seconds and time.monotonic() - watch.started >= load.seconds:
                return
        time.sleep(POLL_SECONDS)


def _figures(load: Load, watch: Watch, start_ns: int, backlog: int, interrupted: bool) -> Figures:
    published, consumed = watch.total("published"), watch.total("received")
    publishing = max((link.last_ns - start_ns for link in watch.producers), default=0) / 1e9
    consuming = max((link.last_ns - start_ns for link in watch.consumers if link.last_ns), default=0) / 1e9
    figures: Figures = {
        "producers": load.producers, "consumers": load.consumers, "queues": load.queues, "size": load.size,
        "published": published, "consumed": consumed, "seconds": round(max(publishing, consuming), 4),
        "publish_rate": round(published / publishing) if publishing > 0 else 0,
        "consume_rate": round(consumed / consuming) if consuming > 0 else 0,
    }
    for name in ("confirmed", "nacked", "returned", "redelivered"):
        if (load.confirm and name == "confirmed") or watch.total(name):
            figures[name] = watch.total(name)
    if load.verify_order:
        figures["order"] = order(load, watch, backlog)
        if interrupted:     # Messages were still on their way.
            figures["order"] |= {"missing": 0, "doubled": 0}
    if load.measure and load.consumers:
        figures["latency_us"] = quantiles([link.latency for link in watch.consumers])
        figures["from_write_us"] = quantiles([link.from_write for link in watch.consumers])
    if load.measure and load.confirm:
        figures["confirm_us"] = quantiles([link.waits for link in watch.producers])
    if watch.stalled:
        figures["stalled"] = True
    if interrupted:
        figures["interrupted"] = True
    return figures


def order(load: Load, watch: Watch, backlog: int) -> dict[str, int]:
    """The violations of the order: each figure is a number of messages, and 0 if all is well.

    Within a queue a producer's numbers must grow for each consumer.  Each published message must arrive
    once: the count shows it, and so does the sum of the numbers if the broker refused no message.
    """
    per_producer: dict[int, list[int]] = {}
    for link in watch.consumers:
        for producer, _, first, count, total in link.seen():
            seen = per_producer.setdefault(producer, [first, 0, 0])
            seen[0], seen[1], seen[2] = min(seen[0], first), seen[1] + count, seen[2] + total
    missing = doubled = 0
    if load.producers:
        lost = watch.total("nacked") + watch.total("returned")
        surplus = backlog + (watch.total("published") - lost) * load.copies - watch.total("received")
        missing, doubled = max(0, surplus), max(0, -surplus)
        for index, link in enumerate(watch.producers):
            expected = load.copies * (link.published * (link.published - 1) // 2)
            wrong = per_producer.get(index, [0, 0, 0])[2] != expected
            if wrong and not lost and not backlog and not missing and not doubled:
                missing = doubled = 1
    else:
        for first, count, total in per_producer.values():
            # The difference to an unbroken run of numbers that begins with the first one.
            if total != count * first + count * (count - 1) // 2:
                missing += 1
    return {"misordered": watch.total("misordered"), "missing": missing, "doubled": doubled,
            "foreign": watch.total("foreign")}


def quantiles(histograms: list[Histogram | None]) -> dict[str, float]:
    """p50 to max, in microseconds."""
    sums = Histogram()
    for histogram in histograms:
        if histogram is not None:
            sums.merge(histogram)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
    return {name: round(sums.quantile(share) / 1000, 1) for name, share in shares.items()} | {
        "max": round(sums.max / 1000, 1), "samples": sums.count}


# -- connections, queues

def connections(address: Address, count: int, hold: float, openers: int, pids: tuple[int, ...], say: Say) -> Figures:
    """Open idle connections, each with a channel and a consumer, and measure what they cost the broker."""
    allow_files(count + 100)
    control, failures = Client(address), []
    clients: list[Client] = []
    turns, over = iter(range(count)), threading.Event()
    queue = "brokerperf.idle"

    def open_some() -> None:
        try:
            for _ in turns:
                if over.is_set():
                    return
                client = Client(address)
                clients.append(client)
                client.consume(queue, "idle", no_ack=True)
        except PerfError as error:
            failures.append(error)

    def tell() -> None:
        say.at(len(clients) / count, f"{len(clients):,} of {count:,} connections are open")

    control.delete_queue(queue)
    control.declare_queue(queue)
    before, began = usage(list(pids)), time.monotonic()
    threads = [start(open_some) for _ in range(openers)]
    try:
        while any(thread.is_alive() for thread in threads):
            threads[0].join(1)
            threads = [thread for thread in threads if thread.is_alive()]
            tell()
        seconds = time.monotonic() - began
        tell()  # The last thread may have ended right behind the last look at it.
        if failures:
            raise failures[0]
        time.sleep(hold)
        after = usage(list(pids))
    finally:
        over.set()
        for thread in threads:
            thread.join()
        part(clients)
        control.delete_queue(queue)
        control.drop()
    figures: Figures = {"connections": count, "seconds": round(seconds, 3), "rate": round(count / seconds)}
    if pids:
        figures["rss_kb_each"] = round((after.rss_kb - before.rss_kb) / count, 2)
        figures["broker"] = broker_figures(before, after, 0)
    return figures


def allow_files(count: int) -> None:
    """Raise this process's limit of open files; PerfError if the system does not allow that many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise PerfError(f"this process may open {hard} files, {count} are needed (ulimit -n)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def queues(address: Address, count: int, durable: bool, arguments: dict[str, object], bind: bool, window: int,
           keep: bool, pids: tuple[int, ...], say: Say) -> Figures:
    """Declare queues, `window` at a time, bind each to amq.direct, and measure what they cost the broker."""
    client = Client(address)
    names = [f"brokerperf.queue.{index}" for index in range(count)]
    done = 0
    try:
        before, began, said = usage(list(pids)), time.monotonic(), 0.0
        with interrupts() as interrupted:
            for index in range(0, count, window):
                client.declare_queues(names[index:index + window], durable, arguments, bind)
                done = min(index + window, count)
                if (now := time.monotonic()) - max(began, said) >= 1:
                    said = now
                    say.at(done / count, f"{done:,} of {many(count, 'queue')}  {done / (now - began):,.0f}/s")
                if interrupted():
                    say.line("interrupted: what was measured so far")
                    break
            seconds, after = time.monotonic() - began, usage(list(pids))
            figures: Figures = {"queues": done, "seconds": round(seconds, 3), "rate": round(done / seconds)}
            if pids:
                figures["rss_kb_each"] = round((after.rss_kb - before.rss_kb) / done, 2)
                figures["broker"] = broker_figures(before, after, 0)
            if interrupted():
                figures["interrupted"] = True
            if not keep:
                began = time.monotonic()
                for name in names[:done]:
                    client.delete_queue(name)
                figures["delete_rate"] = round(done / (time.monotonic() - began))
        return figures
    finally:
        client.drop()


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """In this block a first Ctrl-C only makes the yielded function say True; a second one raises KeyboardInterrupt.

    So no request is cut off in its midst.  Outside of the main thread there is no Ctrl-C to wait for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    arrived = threading.Event()

    def note(number: int, frame: object) -> None:
        if arrived.is_set():
            raise KeyboardInterrupt
        arrived.set()

    former = signal.signal(signal.SIGINT, note)
    try:
        yield arrived.is_set
    finally:
        signal.signal(signal.SIGINT, former)
