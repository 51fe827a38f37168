"""/metrics: read by prometheus_client's parser."""

import json
import re
import shutil
import subprocess
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.broker import ROOT
from tests.conversations.peer import eventually
from tests.management.http import Http, reserve_http
from tests.server.clients import close_all, connect

from brokerd.management.metrics import DETAILED, Carried, Family, expose


def read(octets):
    """Value by name and labels."""
    found = {}
    for family in text_string_to_metric_families(octets.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))]


@pytest.fixture(scope="module")
def busy(shared):
    channel = connect(shared).channel()
    channel.queue_declare('a"b\\c', durable=True)
    for _ in range(3):
        channel.basic_publish("", 'a"b\\c', b"x")
    channel.basic_get('a"b\\c', auto_ack=True)
    yield shared
    close_all()


def test_the_whole_broker_is_counted(busy):
    # The answer may be that of another request a moment ago.
    found = eventually(lambda: read(busy.http.get("/metrics")),
                       lambda each: value(each, "rabbitmq_queue_messages_ready") == 2)
    assert value(found, "rabbitmq_connections") == 1
    assert value(found, "rabbitmq_queues") == 1
    assert value(found, "rabbitmq_global_messages_received_total", protocol="amqp091") == 3
    assert value(found, "rabbitmq_global_messages_delivered_total", protocol="amqp091", queue_type="classic") == 1
    names = {name for name, _ in found}
    assert {"rabbitmq_identity_info", "rabbitmq_build_info", "rabbitmq_process_resident_memory_bytes",
            "rabbitmq_disk_space_available_bytes", "rabbitmq_process_open_fds", "rabbitmq_erlang_uptime_seconds",
            "brokerd_messages_return_to_queue_total"} <= names


PROMTOOL = shutil.which("promtool")
PAGES = ("/metrics", "/metrics/per-object", "/metrics/detailed?" + "&".join(f"family={name}" for name in DETAILED))
# promtool's taste, against names that RabbitMQ has given, which dashboards ask for.
TASTE = re.compile(r"no help text|counter metrics should have|non-counter metrics should not|metric names should not "
                   r"contain|use base unit|label name .* should|camelCase|non-histogram and non-summary")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not installed")
@pytest.mark.parametrize("page", PAGES)
def test_promtool_can_read_every_page(busy, page):
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=busy.http.get(page), capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in said if line and not TASTE.search(line)] == []
    assert done.returncode in (0, 3)  # 3: something is not to its taste.


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not installed")
def test_promtool_takes_the_alert_rules():
    done = subprocess.run([PROMTOOL, "check", "rules", ROOT / "config" / "alerts.yml"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


def test_what_comes_and_goes_is_counted(busy):
    def churn():
        found = read(busy.http.get("/metrics"))
        return [value(found, f"rabbitmq_{name}_total") for name in (
            "connections_opened", "connections_closed", "channels_opened", "channels_closed", "queues_declared",
            "queues_created", "queues_deleted")]

    before = churn()
    channel = connect(busy).channel()
    for _ in range(2):
        channel.queue_declare("passing")
    channel.queue_delete("passing")
    channel.connection.close()
    wanted = [old + more for old, more in zip(before, (1, 1, 1, 1, 2, 1, 1), strict=True)]
    eventually(churn, lambda each: each == wanted)


def test_every_alert_asks_for_metrics_that_are_there(busy):
    names = {name for name, _ in read(busy.http.get("/metrics"))}
    text = (ROOT / "config" / "alerts.yml").read_text()
    expressions = re.findall(r"expr: (?:>-\n)?(.*)", text)
    asked = {name for each in expressions for name in re.findall(r"\b(?:rabbitmq|brokerd)_\w+", each)}
    assert len(expressions) == text.count("- alert:") > 5
    assert len(asked) > 8
    assert asked <= names


def test_each_object_has_its_sample(busy):
    found = read(busy.http.get("/metrics/per-object"))
    assert value(found, "rabbitmq_queue_messages_ready", vhost="/", queue='a"b\\c') == 2
    assert value(found, "brokerd_queue_next_seq", vhost="/", queue='a"b\\c') == 4
    assert [name for name, _ in found if name == "rabbitmq_channel_consumers"]


def test_each_link_has_its_samples(busy):
    value_ = {"src-uri": "amqp://", "src-queue": "links", "dest-uri": "amqp://127.0.0.1:1"}
    assert busy.http.ask("PUT", "/api/parameters/shovel/%2F/s", {"value": value_}).status == 201
    assert busy.http.ask("PUT", "/api/shovels/%2F/s/pause").status == 204
    found = read(busy.http.get("/metrics/detailed?family=link_metrics"))
    labels = {"vhost": "/", "type": "shovel", "link": "s", "upstream": ""}
    assert value(found, "brokerd_detailed_link_up", **labels) == 0
    assert value(found, "brokerd_detailed_link_messages_total", **labels) == 0
    assert "brokerd_detailed_link_idle_seconds" not in {name for name, _ in found}  # It has had no message.
    assert busy.http.ask("DELETE", "/api/parameters/shovel/%2F/s").status == 204
    assert value(read(busy.http.get("/metrics")), "brokerd_links", state="running") == 0


def test_families_are_chosen_by_name_and_vhost(busy):
    found = read(busy.http.get("/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count&vhost=%2F"))
    assert {name for name, _ in found} == {
        "rabbitmq_identity_info", "rabbitmq_build_info", "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked", "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_consumers"}
    for family in DETAILED:
        read(busy.http.get(f"/metrics/detailed?family={family}"))
    assert busy.http.ask("GET", "/metrics/detailed?family=none").status == 400
    assert busy.http.ask("GET", "/metrics/detailed?family=queue_metrics&vhost=none").status == 404


def test_streams_show_the_lag_of_each_named_reader_also_of_one_that_left(busy):
    channel = connect(busy).channel()
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for _ in range(5):
        channel.basic_publish("", "log", b"x")
    busy.http.do("stream", "set_offset", queue="log", reader="billing", offset=3, create=True)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("log", lambda *_: None, arguments={"x-stream-offset": "first"})
    lag = "brokerd_stream_reader_lag_messages"
    # The page may be older than the reader, as all pages that took long to make.
    found = eventually(lambda: read(busy.http.get("/metrics/per-object")),
                       lambda found: sum(name == lag for name, _ in found) == 2)
    assert value(found, lag, vhost="/", queue="log", reader="billing") == 3
    assert value(found, lag, vhost="/", queue="log", reader="") == 5
    assert value(found, "brokerd_stream_reader_reads", vhost="/", queue="log", reader="billing") == 0
    assert value(found, "brokerd_stream_kept_messages", vhost="/", queue="log") == 5
    assert value(found, "brokerd_stream_kept_bytes", vhost="/", queue="log") > 0
    assert value(found, "brokerd_stream_lag_messages", vhost="/", queue="log") == 5
    counts = [("brokerd_streams", ()), ("brokerd_stream_readers", ())]
    whole = eventually(lambda: read(busy.http.get("/metrics")),
                       lambda found: [found[each] for each in counts] == [1, 2])
    assert value(whole, "brokerd_stream_lag_messages") == 5
    assert value(whole, "brokerd_stream_oldest_age_seconds") >= 0
    channel.queue_delete("log")


def test_paused_queues_are_counted_and_named(busy):
    channel = connect(busy).channel()
    channel.queue_declare("held", durable=True)
    assert value(read(busy.http.get("/metrics")), "brokerd_queues_paused") == 0
    busy.http.do("queue", "pause", queue="held")
    eventually(lambda: value(read(busy.http.get("/metrics")), "brokerd_queues_paused"), lambda count: count == 1)
    found = eventually(lambda: read(busy.http.get("/metrics/per-object")),
                       lambda found: any(name == "brokerd_queue_paused" for name, _ in found))
    assert [dict(labels) for name, labels in found if name == "brokerd_queue_paused"] == [
        {"vhost": "/", "queue": "held"}]
    channel.queue_delete("held")


def test_a_counter_does_not_fall_when_a_queue_is_deleted():
    carried = Carried()
    assert [carried.total("a", each) for each in (10, 25, 5, 8, 0, 1)] == [10, 25, 25, 28, 28, 29]


def test_labels_and_help_are_escaped_and_a_family_has_one_head():
    octets = expose([Family("a_total", "counter", "x\ny\\", [({"l": 'q"\\\n'}, 1)]),
                     Family("a_total", "counter", "again", [({"l": "r"}, 2.5)]), Family("b", "gauge", "B", [({}, 0)])])
    assert octets.count(b"# TYPE a_total") == 1
    assert read(octets) == {("a_total", (("l", 'q"\\\n'),)): 1, ("a_total", (("l", "r"),)): 2.5, ("b", ()): 0}


def test_a_name_that_is_not_utf_8_is_told_by_its_octets():
    names = [octets.decode("utf-8", "surrogateescape") for octets in (b"caf\xe9", b"caf\xea", b"caf\xc3\xa9")]
    octets = expose([Family("a", "gauge", "A", [({"l": name}, 1) for name in names])])
    assert list(read(octets)) == [("a", (("l", label),)) for label in (r"caf\udce9", r"caf\udcea", "caf\u00e9")]


NAMES = st.lists(st.sampled_from(["\\", "u", "udce9", "\\udce9", "\udce9", "x"]), max_size=6).map("".join)


@given(one=NAMES, other=NAMES)
def test_two_names_never_have_the_same_label(one, other):
    names = {one, other}
    assert len(read(expose([Family("a", "gauge", "A", [({"l": name}, 1) for name in names])]))) == len(names)


OVERVIEW = (  # what RabbitMQ's overview dashboard asks for
    "identity_info", "build_info", "queue_messages_ready", "queue_messages_unacked",
    "global_messages_received_total", "global_messages_received_confirm_total", "global_messages_confirmed_total",
    "global_messages_routed_total", "global_messages_unroutable_dropped_total",
    "global_messages_unroutable_returned_total", "global_messages_delivered_total",
    "global_messages_delivered_consume_manual_ack_total", "global_messages_delivered_consume_auto_ack_total",
    "global_messages_delivered_get_manual_ack_total", "global_messages_delivered_get_auto_ack_total",
    "global_messages_redelivered_total", "global_messages_acknowledged_total", "global_messages_get_empty_total",
    "global_publishers", "global_consumers", "queues", "queues_declared_total", "queues_created_total",
    "queues_deleted_total", "connections", "connections_opened_total", "connections_closed_total", "channels",
    "channels_opened_total", "channels_closed_total", "process_resident_memory_bytes",
    "resident_memory_limit_bytes", "disk_space_available_bytes", "disk_space_available_limit_bytes",
    "process_open_fds", "process_max_fds", "message_size_bytes_bucket", "message_size_bytes_sum",
    "message_size_bytes_count", "erlang_uptime_seconds",
)


def test_every_metric_of_rabbitmqs_overview_dashboard_is_there(busy):
    names = {name for name, _ in read(busy.http.get("/metrics"))}
    assert {f"rabbitmq_{name}" for name in OVERVIEW} - names == set()


WAYS = ("received", "received_confirm", "confirmed", "routed", "unroutable_dropped", "unroutable_returned", "delivered",
        "delivered_consume_manual_ack", "delivered_consume_auto_ack", "delivered_get_manual_ack",
        "delivered_get_auto_ack", "acknowledged", "get_empty")


def ways(http):
    """The counters of messages, by the words of the dashboard."""
    found = read(http.get("/metrics"))
    return {way: sum(count for (name, _), count in found.items() if name == f"rabbitmq_global_messages_{way}_total")
            for way in WAYS}


def test_each_way_of_a_message_has_its_counter(busy):
    before = ways(busy.http)
    channel = connect(busy).channel()
    channel.queue_declare("ways")
    for _ in range(6):
        channel.basic_publish("", "ways", b"x")
    channel.basic_get("ways", auto_ack=True)
    channel.basic_ack(channel.basic_get("ways")[0].delivery_tag)
    channel.basic_publish("", "nowhere", b"x")
    confirming = connect(busy).channel()
    confirming.confirm_delivery()
    confirming.basic_publish("", "ways", b"x")
    with pytest.raises(Exception, match="1 unroutable"):
        confirming.basic_publish("", "nowhere", b"x", mandatory=True)
    took = [tag for tag, *_ in [each for each in (next(channel.consume("ways")) for _ in range(2)) if each]]
    channel.basic_ack(took[-1].delivery_tag, multiple=True)
    channel.cancel()
    automatic = connect(busy).channel()
    assert [next(automatic.consume("ways", auto_ack=True))[2] for _ in range(2)] == [b"x", b"x"]
    automatic.cancel()
    channel.queue_purge("ways")
    assert channel.basic_get("ways")[0] is None
    confirming.connection.close()  # What it had counted stays.
    wanted = {"received": 9, "received_confirm": 2, "confirmed": 2, "routed": 7, "unroutable_dropped": 1,
              "unroutable_returned": 1, "delivered_get_manual_ack": 1, "delivered_get_auto_ack": 1, "get_empty": 1}
    eventually(lambda: {way: count - before[way] for way, count in ways(busy.http).items()},
               lambda found: wanted.items() <= found.items()
               and found["delivered_consume_manual_ack"] >= 2 and found["delivered_consume_auto_ack"] >= 2)


def test_sizes_and_times_are_counted_once_they_were_asked_for(busy):
    busy.http.get("/metrics")
    channel = connect(busy).channel()
    channel.queue_declare("timed")
    start = read(busy.http.get("/metrics/detailed?family=queue_time_metrics"))
    for size in (99, 101, 2000):
        channel.basic_publish("", "timed", b"x" * size)
    for _ in range(3):
        channel.basic_ack(channel.basic_get("timed")[0].delivery_tag)
    labels = {"vhost": "/", "queue": "timed"}

    def counts():
        found = read(busy.http.get("/metrics/detailed?family=queue_time_metrics"))
        return [value(found, f"brokerd_detailed_queue_message_{what}_seconds_{kind}", **labels, **more)
                for what in ("waiting", "working") for kind, more in (("count", {}), ("bucket", {"le": "+Inf"}))]

    assert value(start, "brokerd_detailed_queue_message_waiting_seconds_count", **labels) == 0
    eventually(counts, lambda found: found == [3, 3, 3, 3])
    channel.queue_delete("timed")
    whole = eventually(lambda: read(busy.http.get("/metrics")),
                       lambda found: value(found, "rabbitmq_message_size_bytes_sum") >= 2200)
    below_100, below_1000 = (value(whole, "rabbitmq_message_size_bytes_bucket", le=bound) for bound in ("100", "1000"))
    assert 1 <= below_100 < below_1000 < value(whole, "rabbitmq_message_size_bytes_count")
    assert value(whole, "brokerd_message_working_seconds_count") >= 3  # The queue has gone, and its times stay.


def board():
    """The expressions of the dashboard, by title of the panel, as Grafana would send them."""
    made = json.loads((ROOT / "config" / "grafana.json").read_text())
    def filled(expression):
        return expression.replace("$broker", ".*").replace("$__rate_interval", "15s")

    return {(panel["title"], target["refId"]): filled(target["expr"])
            for panel in made["panels"] for target in panel["targets"]}


def test_the_dashboard_asks_for_metrics_that_are_there(busy):
    names = {name for name, _ in read(busy.http.get("/metrics"))}
    asked = {name for each in board().values() for name in re.findall(r"\b(?:rabbitmq|brokerd)_\w+(?=[\[ {])", each)}
    assert len(asked) > 30
    assert asked - names == set()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian's) is not installed")
def test_prometheus_scrapes_the_broker_and_answers_every_question_of_the_dashboard(busy, tmp_path):
    port = reserve_http()
    (tmp_path / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "brokerd", "basic_auth": {"username": "guest", "password": "guest"},
                            "static_configs": [{"targets": [f"127.0.0.1:{busy.http.port}"]}]}]}))
    server = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    client = Http(port, None)

    def ask(expression):
        try:
            answer = client.ask("GET", "/api/v1/query?" + urlencode({"query": expression}))
        except OSError:
            return []  # It does not listen yet.
        return answer.body["data"]["result"] if answer.status == 200 else []

    try:
        eventually(lambda: ask("count_over_time(rabbitmq_queues[30s])"),
                   lambda found: found and int(found[0]["value"][1]) >= 4)
        # On a busy machine the last seconds may have one sample, of which there is no rate.
        eventually(lambda: {key: len(ask(expression)) for key, expression in board().items()},
                   lambda counts: counts == dict.fromkeys(board(), 1))
    finally:
        server.terminate()
        server.wait()
