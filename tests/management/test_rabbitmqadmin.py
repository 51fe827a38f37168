"""RabbitMQ's own command rabbitmqadmin, unchanged, where it is installed; test_rabbit_change sends what it sends."""

import os
import shutil
import subprocess
import sys

import pytest
from tests.broker import SECONDS

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
    ]
    for words in declared:
        assert "declared" in admin("declare", *words), words
    for noun, shown in (("vhosts", "v"), ("users", "u"), ("permissions", "u"), ("exchanges", "e"), ("queues", "q"),
                        ("bindings", "a.#"), ("policies", "p"), ("operator_policies", "o"), ("vhost_limits", "v"),
                        ("nodes", "brokerd@"), ("connections", ""), ("channels", ""), ("consumers", "")):
        assert shown in admin("list", noun), noun
    assert "rabbitmq_version" in admin("show", "overview")
    assert "published" in admin("publish", "exchange=e", "routing_key=a.b", "payload=hello")
    assert "hello" in admin("get", "queue=q", "count=1", "ackmode=ack_requeue_true")
    assert "purged" in admin("purge", "queue", "name=q")
    for words in (("binding", "source=e", "destination_type=queue", "destination=q", "properties_key=a.%23"),
                  ("queue", "name=q"), ("exchange", "name=e"), ("policy", "name=p"), ("operator_policy", "name=o"),
                  ("permission", "vhost=v", "user=u"), ("vhost_limit", "vhost=v", "name=max-queues"),
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
