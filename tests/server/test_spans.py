"""Spans as a collector gets them: a broker, its process of spans, and a server that decodes OTLP."""

import gzip
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pika
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.broker import ROOT, environment, run
from tests.conversations.peer import eventually
from tests.server.clients import close_all, connect
from tests.server.test_management import await_true, children, is_gone

TRACE = "0af7651916cd43dd8448eb211c80319c"
SENDER = "b7ad6b7169203331"
MESSAGE = pika.BasicProperties(headers={"traceparent": f"00-{TRACE}-{SENDER}-01"}, delivery_mode=2)


class Collector:
    """Takes spans, or refuses them with a status."""

    def __init__(self):
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                octets = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    octets = gzip.decompress(octets)
                collector.paths.append(self.path)
                if collector.status == 200:
                    collector.take(ExportTraceServiceRequest.FromString(octets))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.status, self.paths, self.spans, self.resources = 200, [], [], []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request):
        for resource in request.resource_spans:
            self.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans += scope.spans


def values(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()
    close_all()


def started(make_broker, collector, *flags, **more):
    broker = make_broker("--otlp-endpoint", collector.url, *flags, **more)
    broker.start()
    broker.wait_for_log("messages with a traceparent in queues with an order journal go to http")
    return broker


def test_a_collector_gets_the_life_of_a_message_as_children_of_its_sender(make_broker, collector):
    broker = started(make_broker, collector)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-order-journal": True})
    channel.queue_bind("orders", "amq.topic", "new.*")
    channel.basic_publish("amq.topic", "new.one", b"m", MESSAGE)
    got, _, _ = channel.basic_get("orders")
    channel.basic_reject(got.delivery_tag, requeue=False)
    eventually(lambda: len(collector.spans), lambda count: count == 3)
    publish, deliver, settle = collector.spans
    assert [each.name for each in collector.spans] == ["publish orders", "deliver orders", "settle orders"]
    assert {each.trace_id.hex() for each in collector.spans} == {TRACE}
    assert publish.parent_span_id.hex() == SENDER
    assert (deliver.parent_span_id, settle.parent_span_id) == (publish.span_id, deliver.span_id)
    assert publish.start_time_unix_nano == publish.end_time_unix_nano == deliver.start_time_unix_nano
    assert deliver.start_time_unix_nano < deliver.end_time_unix_nano == settle.start_time_unix_nano
    said = values(publish.attributes)
    assert (said["brokerd.exchange"], said["messaging.rabbitmq.destination.routing_key"]) == ("amq.topic", "new.one")
    assert (said["messaging.destination.name"], said["brokerd.vhost"], said["brokerd.seq"]) == ("orders", "/", 1)
    assert values(deliver.attributes)["brokerd.redelivered"] is False
    assert values(settle.attributes)["brokerd.outcome"] == "rejected"
    assert collector.resources[0]["service.name"] == "brokerd"
    assert set(collector.paths) == {"/v1/traces"}


def test_what_a_collector_refuses_is_lost_and_the_log_says_why(make_broker, collector):
    collector.status = 400
    broker = started(make_broker, collector)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-order-journal": True})
    channel.basic_publish("", "q", b"m", MESSAGE)
    broker.wait_for_log(r"1 spans were lost, http://127.0.0.1:\d+/v1/traces did not take them: .*400")
    collector.status = 200
    channel.basic_get("q", auto_ack=True)
    eventually(lambda: [each.name for each in collector.spans], lambda names: names == ["deliver q", "settle q"])


def test_the_process_ends_with_its_broker(make_broker, collector):
    broker = started(make_broker, collector)
    [pid] = children(broker.pid)
    broker.kill()
    await_true(lambda: is_gone(pid))


def test_without_the_library_the_log_says_what_to_install(make_broker, collector, tmp_path):
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('not here')\n")
    path = f"{tmp_path}:{ROOT / 'src'}"
    broker = make_broker("--otlp-endpoint", collector.url, env={"PYTHONPATH": path})
    broker.may_fork = False
    broker.start()
    broker.wait_for_log(r"spans: otlp_endpoint needs .* \(pip install 'brokerd\[otlp\]'\): no spans until that changes")


def test_an_endpoint_that_is_no_url_is_refused_at_the_start(tmp_path):
    status, _, said = run("--data-dir", tmp_path / "data", "--amqp-port", 0, "--otlp-endpoint", "collector:4318")
    assert status != 0
    assert "otlp_endpoint must be a URL that begins with http:// or https://" in said
    assert not (tmp_path / "data").exists()


def test_a_broker_without_a_collector_starts_no_process_and_imports_nothing_of_it(broker):
    assert children(broker.pid) == []
    done = subprocess.run(
        [sys.executable, "-c", "import sys, brokerd.server.launch; print([name for name in sys.modules if"
         " name.startswith(('brokerd.spans', 'brokerd.server.spans', 'opentelemetry'))])"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
