"""docs/compatibility.md holds: each of its rows is shown by a test, and each difference that tests know is a row."""

import ast
import re
from pathlib import Path

import pytest
from tests.conversations.differences import DIFFERENCES
from tests.conversations.not_yet import NOT_YET

ROOT = Path(__file__).resolve().parent.parent
CONVERSATIONS = sorted((ROOT / "tests" / "conversations").glob("test_*.py"))
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")

# Rows that no conversation of one connection can show, or that RabbitMQ 3.10 does not show: the test that holds
# brokerd to them.
ELSEWHERE = {
    "confirm of a persistent message on a durable queue": "faults/test_power.py",
    "a sync that fails": "server/test_launch.py",
    "delivery_mode 1 on a durable queue": "faults/test_kill.py",
    "`-ok` of a durable declare, bind, delete": "faults/test_power.py",
    "order after redelivery": "conversations/test_basic.py",
    "`redelivered` after `kill -9`": "faults/test_kill.py",
    "`tx.commit`": "store/test_commit_log.py",
    "`basic.qos` with `global`": "conversations/test_basic.py",
    "queues neither durable nor exclusive": "conversations/test_queue.py",
    "consumer timeout": "plane/test_rules.py",
    "other queue arguments and policies": "test_docs.py",
    "slow publishers": "server/test_resources.py",
    "memory alarm": "server/test_alarm_of_memory.py",
    "least frame_max": "conversations/test_connection.py",
    "dead letters and deduplication": "vhost/test_duplicates.py",
    "largest message by default": "test_config.py",
    "protocol header of something else": "conversations/test_connection.py",
    "exchange type and argument errors": "conversations/test_exchange_types.py",
    "mechanisms": "server/test_tls.py",
    "default user from elsewhere": "session/test_handshake.py",
    "`connection.start-ok` of more than 4,096 octets": "session/test_handshake.py",
    "passwords of new users": "auth/test_passwords.py",
    "import of definitions": "server/test_changes.py",
    "a parameter of a shovel or an upstream that cannot be": "policies/test_link_parameters.py",
    "a setting of a policy that cannot be": "policies/test_words.py",
    "passwords in addresses of links": "management/test_rabbit_links.py",
    "who sees shovels and federation links": "management/test_rabbit_links.py",
    "a dead letter of a message with `BCC`": "conversations/test_cc_bcc.py",
    "headers exchange: values within arrays and tables": "exchanges/test_headers.py",
    "headers exchange: a byte array and a string of the same octets": "exchanges/test_headers.py",
    "`x-delivery-count` and `x-acquired-count` of quorum queues": "conversations/test_delivery_limit.py",
    "a message that a link's destination refuses": "carriers/test_shovel.py",
}


def rows():
    """The first cell of each row of the table of deliberate differences."""
    table = PAGE.split("\n## Deliberate differences\n", 1)[1].split("\n## ", 1)[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:]


def marks():
    """What each ``differs("...")`` of the conversations names."""
    found = set()
    for path in CONVERSATIONS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "differs":
                found.add(node.args[0].value)
    return found


def test_every_difference_is_a_row_and_shown_by_a_conversation():
    assert set(DIFFERENCES) <= set(rows())
    assert marks() == set(DIFFERENCES)


@pytest.mark.parametrize("row", rows())
def test_every_row_is_shown_by_a_test(row):
    if row not in DIFFERENCES:
        assert (ROOT / "tests" / ELSEWHERE[row]).exists()


def test_rows_are_shown_in_one_place():
    assert len(rows()) == len(set(rows()))
    assert not set(ELSEWHERE) & set(DIFFERENCES)
    assert set(ELSEWHERE) <= set(rows())


def test_what_is_not_done_yet_is_a_conversation():
    functions = {f"{path.name}::{name}" for path in CONVERSATIONS
                 for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)}
    for key in NOT_YET:
        assert key.partition("[")[0] in functions, key
