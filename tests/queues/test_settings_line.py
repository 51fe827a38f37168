"""The settings of a queue as the side file of its order journal has them."""

from brokerd.queues.rules import rules_of
from brokerd.queues.settings_line import describe_settings
from brokerd.store import side_file


class Queue:
    name, vhost_name, policy, max_priority, journaled = "q", "/", "p", 2, True

    def __init__(self, arguments):
        self.arguments = arguments
        self.rules = rules_of(arguments, {})


def test_settings_are_what_is_in_force():
    arguments = {"x-delivery-limit": 3, "x-dead-letter-exchange": "d", "x-message-ttl": 5,
                 "x-overflow": "reject-publish", "x-single-active-consumer": True, "x-order-journal": True,
                 "x-order-journal-retention-bytes": 9, "x-order-journal-retention-age": "1s", "x-of-others": b"\xff"}
    said = describe_settings(Queue(arguments))
    assert said == {
        "vhost": "/", "queue": "q", "journal": True, "max_priority": 2, "delivery_limit": 3,
        "delivery_limit_action": "dead-letter", "retry": False,
        "dead_letter_exchange": "d", "dead_letter_routing_key": None,
        "dead_letter_at_least_once": False, "overflow": "reject-publish",
        "message_ttl_ms": 5, "single_active_consumer": True, "groups": None,
        "deduplication": None, "arguments": arguments,
        "policy": "p", "retention_octets": 9, "retention_ms": 1000,
    }
    (line,) = side_file.decode(side_file.encode(said))
    assert line["arguments"]["x-of-others"] == "\udcff"


def test_where_dead_letters_go_and_how_is_said():
    said = describe_settings(Queue({
        "x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
        "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}))
    assert [said[f"dead_letter_{name}"] for name in ("exchange", "routing_key", "at_least_once")] == ["", "dead", True]


def test_what_is_not_limited_is_null():
    said = describe_settings(Queue({}))
    assert [said[name] for name in ("delivery_limit", "dead_letter_exchange", "message_ttl_ms")] == [None] * 3


def test_message_groups_are_said():
    said = describe_settings(Queue({"x-message-group": "sticky", "x-message-group-header": "customer"}))
    assert said["groups"] == {"mode": "sticky", "by": "header", "headers": ["customer"], "keyless": "free", "most": 1}
