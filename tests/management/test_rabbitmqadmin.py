"""RabbitMQ's own command rabbitmqadmin, unchanged, where it is installed; test_rabbit_change sends what it sends."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from tests.broker import SECONDS
from tests.conversations.peer import eventually
from tests.server.clients import connect

ADMIN = os.environ.get("RABBITMQADMIN") or shutil.which("rabbitmqadmin")
pytestmark = pytest.mark.skipif(not ADMIN, reason="rabbitmqadmin is not installed (apt-get install rabbitmq-server)")


@pytest.fixture(scope="module")
def admin(shared):
    def run(*words, status=0):
        done = subprocess.run([sys.executable, "-W", "ignore", ADMIN, "-P", str(shared.http.port), *words],
                              capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


def test_everything_is_declared_listed_and_deleted(admin):
    declared = [
        ("vhost", "name=v"), ("user", "name=u", "password=p", "tags=management"),
        ("permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*"),
        ("exchange", "name=e", "type=topic"), ("queue", "name=q", "durable=true", 'arguments={"x-max-length": 9}'),
        ("binding", "source=e", "destination=q", "routing_key=a.#"),
        ("policy", "name=p", "pattern=^q", 'definition={"max-length": 5}', "apply-to=queues"),
        ("operator_policy", "name=o", "pattern=^q", 'definition={"max-length": 7}', "apply-to=queues"),
        ("vhost_limit", "vhost=v", "name=max-queues", "value=3"),
        ("parameter", "component=federation-upstream", "name=up", 'value={"uri": "amqp://127.0.0.1:1"}'),
    ]
    for words in declared:
        assert "declared" in admin("declare", *words), words
    for noun, shown in (("vhosts", "v"), ("users", "u"), ("permissions", "u"), ("exchanges", "e"), ("queues", "q"),
                        ("bindings", "a.#"), ("policies", "p"), ("operator_policies", "o"), ("vhost_limits", "v"),
                        ("parameters", "federation-upstream"), ("nodes", "brokerd@"), ("connections", ""),
                        ("channels", ""), ("consumers", "")):
        assert shown in admin("list", noun), noun
    assert "rabbitmq_version" in admin("show", "overview")
    assert "published" in admin("publish", "exchange=e", "routing_key=a.b", "payload=hello")
    assert "hello" in admin("get", "queue=q", "count=1", "ackmode=ack_requeue_true")
    assert "purged" in admin("purge", "queue", "name=q")
    for words in (("binding", "source=e", "destination_type=queue", "destination=q", "properties_key=a.%23"),
                  ("queue", "name=q"), ("exchange", "name=e"), ("policy", "name=p"), ("operator_policy", "name=o"),
                  ("permission", "vhost=v", "user=u"), ("vhost_limit", "vhost=v", "name=max-queues"),
                  ("parameter", "component=federation-upstream", "name=up"),
                  ("user", "name=u"), ("vhost", "name=v")):
        assert "deleted" in admin("delete", *words), words


def test_definitions_are_exported_and_imported(admin, tmp_path):
    file = str(tmp_path / "definitions.json")
    admin("declare", "queue", "name=kept", "durable=true")
    assert "Exported" in admin("export", file)
    admin("delete", "queue", "name=kept")
    assert "Uploaded" in admin("import", file)
    assert "kept" in admin("list", "queues")
    admin("delete", "queue", "name=kept")


def test_what_is_wrong_is_told(admin):
    admin("delete", "queue", "name=none", status=1)


def test_a_connection_is_closed(admin, shared):
    connection = connect(shared)
    connection.channel()
    name = eventually(lambda: json.loads(admin("-f", "raw_json", "list", "connections", "name")), bool)[0]["name"]
    assert "closed" in admin("close", "connection", f"name={name}")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(time_limit=60)


@pytest.mark.parametrize("form", ["table", "tsv", "long", "kvp", "bash", "raw_json", "pretty_json"])
def test_lists_come_in_each_form_with_chosen_columns(admin, form):
    admin("declare", "queue", "name=formed")
    shown = admin("-f", form, "-V", "/", "list", "queues", "name", "messages")
    assert "formed" in shown
    admin("delete", "queue", "name=formed")


def test_every_subcommand_is_in_a_test_above(admin):
    words = [line.split()[:2] for line in admin("help", "subcommands").splitlines()
             if line.startswith("  ") and not line.startswith(("  rabbitmqadmin", "  where", "  *", "    "))]
    offered = {" ".join(each) if each[0] in ("list", "show", "declare", "delete", "close", "purge") else each[0]
               for each in words if each}
    text = Path(__file__).read_text()
    assert len(offered) > 30
    for each in offered:
        verb, _, noun = each.partition(" ")
        assert f'"{verb}"' in text, each
        assert not noun or f'"{noun}"' in text, each
