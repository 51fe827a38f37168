"""The table: every row is whole and in the manual, requests are checked by it, and rights before anything else."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, get_type_hints

import pytest
from tests.test_config import imported_by

from brokerd import operations
from brokerd.operations import OperationError, table
from brokerd.operations.rows import LOCAL, Field, Operation, Right, TypedDict, Who, request, request_fields

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = list(table.by_name().values())
RESERVED = {"verb", "as", "json", "watch", "help"}  # what the control socket and brokerctl call their own


@request
class Asked:
    queue: Annotated[str, Field("Its name.", argument=True)]
    names: Annotated[list[str], Field("Several.")] = ()
    vhost: Annotated[str, Field("Its vhost.")] = "/"


class Answer(TypedDict):
    done: str


@pytest.fixture
def row(monkeypatch):
    """A row more in the table."""
    row = Operation("queue", "try", "Try.", Asked, Answer, Right("management", "visit"),
                    lambda node, who, asked: {"done": f"{asked.queue} by {who.user}"}, aliases=("try_queue",))
    monkeypatch.setitem(table.by_name(), row.name, row)
    return row


# --- laws

@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_whole(row):
    assert re.fullmatch("[a-z_]+ [a-z_]+", row.name)
    assert re.match(r"[A-Z][^\n]+[.:]?(\n|$)", row.help)
    assert row.help.partition("\n")[0].endswith(".")
    table.adapter(row.request).json_schema()
    schema = table.adapter(row.answer).json_schema()
    assert schema["type"] == "object"
    assert schema["properties"]
    fields = request_fields(row.request)
    assert all(each.field.help.endswith(".") for each in fields)
    names = {each.name for each in fields}
    assert not names & RESERVED
    assert (row.right.permission in ("", "visit")) == (not row.right.on)
    assert not row.right.permission or "vhost" in names
    assert not row.right.on or row.right.on in names


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_function_of_node_who_and_request(row):
    code = row.function.__code__
    assert code.co_varnames[:code.co_argcount] == ("node", "who", "request")
    assert row.request.__module__ == row.function.__module__ == f"brokerd.operations.{row.noun}"


def test_names_and_aliases_mean_one_operation_each():
    names = [name for row in ROWS for name in (row.name, *row.aliases, *row.presets)]
    assert len(set(names)) == len(names)
    assert not {alias for row in ROWS for alias in row.aliases} & {row.noun for row in ROWS}


def test_every_module_with_rows_is_in_the_table():
    modules = {path.stem for path in Path(operations.__file__).parent.glob("*.py")
               if re.search("^OPERATIONS", path.read_text(), re.MULTILINE)}
    assert modules == set(table.NOUNS)


def test_the_manual_has_every_operation_and_no_other():
    parts = [("running.md", "Looking in"), ("operating.md", "Commands")]
    manual = "".join([(ROOT / "docs" / page).read_text().split(f"\n## {head}\n")[1].split("\n## ")[0]
                      for page, head in parts])
    commands = set(re.findall(r"^\| `([^`]+)` \|", manual, re.MULTILINE))
    assert commands == {row.usage for row in ROWS} | {
        "inspect DIR", "audit DIR", "export DIR OUT", "restore BACKUP DIR"}
    assert all(re.search(f"`{alias}[` ]", manual) for row in ROWS for alias in (*row.aliases, *row.presets))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_answers_have_types_that_mypy_can_hold_functions_to(row):
    assert get_type_hints(row.answer)


# --- requests

def test_an_operation_is_found_by_its_name_or_alias(row):
    assert table.find("queue try") is row
    assert table.find("try_queue") is row
    assert table.find("ordering") is table.find("queue ordering")


@pytest.mark.parametrize(("name", "text"), [
    ("stop", "no operation 'stop'"), ("queue orderin", "no operation 'queue orderin'; did you mean queue ordering?"),
    ("", "no operation ''"), ("queue", "no operation 'queue'"),
])
def test_a_name_that_is_no_operation_is_told_the_nearest_one(name, text):
    with pytest.raises(OperationError) as no:
        table.find(name)
    assert str(no.value).startswith(text)
    assert no.value.code == 400


@pytest.mark.parametrize(("fields", "text"), [
    ({}, "try_queue: queue is missing: it must be a text"),
    ({"queue": 1}, "try_queue: queue must be a text"),
    ({"qeueu": "x"}, "try_queue: unknown field 'qeueu'"),
    ({"queue": "q", "names": ["a", 1]}, "try_queue: names.1: Input should be a valid string"),
    ({"queue": "q", "names": 5}, "try_queue: names: Input should be a valid list"),
])
def test_what_is_wrong_with_a_request_is_one_line_that_names_the_field(row, fields, text):
    with pytest.raises(OperationError) as no:
        table.perform(None, LOCAL, "try_queue", fields)
    assert (str(no.value), no.value.code) == (text, 400)


def test_a_request_is_done_with_its_defaults(row):
    done, answer = table.perform(None, LOCAL, "queue try", {"queue": "q"})
    assert (done, answer) == (row, {"done": "q by "})


def test_rights_are_checked_before_the_operation_is_done(row):
    users = SimpleNamespace(get=lambda name: SimpleNamespace(tags=("management",)))
    node = SimpleNamespace(users=users, permissions=SimpleNamespace(has_access=lambda user, vhost: vhost == "/"))
    assert table.perform(node, Who("alice"), "queue try", {"queue": "q"})[1] == {"done": "q by alice"}
    with pytest.raises(OperationError, match="alice") as no:
        table.perform(node, Who("alice"), "queue try", {"queue": "q", "vhost": "other"})
    assert no.value.code == 403


def test_after_prepare_no_request_imports_pydantic_or_builds_a_model():
    program = """
from brokerd.operations import OperationError, table
table.prepare()
import sys
before, models = set(sys.modules), len(table._ADAPTERS)
for row in table.by_name().values():
    try:
        table.read(row, row.name, {})
    except OperationError:
        pass
assert len(table._ADAPTERS) == models >= 3
assert {name for name in set(sys.modules) - before if name.startswith("pydantic")} == set()
"""
    assert "pydantic" in imported_by(program)


# lavinmqctl's commands that brokerctl knows by the same name.  The page names the others.
LAVINMQCTLS = """
    add_user delete_user list_users change_password set_user_tags set_permissions hash_password add_vhost delete_vhost
    list_vhosts set_vhost_limits list_queues create_queue delete_queue purge_queue pause_queue resume_queue
    restart_queue list_exchanges create_exchange delete_exchange list_policies set_policy clear_policy list_connections
    close_connection close_all_connections export_definitions import_definitions definitions list_shovels add_shovel
    delete_shovel list_federations add_federation delete_federation status cluster_status gc_collect stop_app start_app
"""


# All that rabbitmqctl of RabbitMQ 3.10 lists, without help.
RABBITMQCTLS = """
    autocomplete version await_startup reset rotate_logs shutdown start_app stop stop_app wait await_online_nodes
    change_cluster_node_type cluster_status force_boot force_reset forget_cluster_node join_cluster rename_cluster_node
    update_cluster_nodes cancel_sync_queue sync_queue add_user authenticate_user change_password clear_password
    clear_user_limits delete_user list_user_limits list_users set_user_limits set_user_tags clear_permissions
    clear_topic_permissions list_permissions list_topic_permissions list_user_permissions list_user_topic_permissions
    list_vhosts set_permissions set_topic_permissions list_bindings list_channels list_ciphers list_connections
    list_consumers list_exchanges list_hashes list_node_auth_attempt_stats list_queues list_unresponsive_queues ping
    report schema_info status clear_global_parameter clear_parameter list_global_parameters list_parameters
    set_global_parameter set_parameter clear_operator_policy clear_policy list_operator_policies list_policies
    set_operator_policy set_policy add_vhost clear_vhost_limits delete_vhost list_vhost_limits restart_vhost
    set_vhost_limits set_vhost_tags trace_off trace_on decode encode environment set_cluster_name set_disk_free_limit
    set_log_level set_vm_memory_high_watermark export_definitions import_definitions enable_feature_flag
    list_feature_flags close_all_connections close_all_user_connections close_connection eval eval_file exec force_gc
    resume_listeners suspend_listeners delete_queue purge_queue hipe_compile node_health_check
"""


@pytest.mark.parametrize("command", sorted({*LAVINMQCTLS.split(), *RABBITMQCTLS.split()}))
def test_a_command_of_lavinmqctl_or_rabbitmqctl_is_known_or_left_out_with_a_reason(command):
    page = (ROOT / "docs" / "compatibility.md").read_text()
    part = page.split("\n## Commands that are left out\n")[1].split("\n## ")[0]
    known = any(command in row.aliases or command in row.presets for row in ROWS)
    assert known is not (f"`{command}`" in part)
