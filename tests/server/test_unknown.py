"""Names in files of the data directory that mean nothing are told at the start and at a reload."""

import os
import signal

import pytest
from tests.server.clients import close_all, connect, permission, publish_confirmed, write_json

from brokerd.store.format import folder_name


@pytest.fixture
def broker(make_broker):
    """A broker that has been stopped, and has the vhosts / and two; two has a message."""
    broker = make_broker().start()
    broker.stop()
    write_json(broker.directory / "vhosts.json", [{"name": "/"}, {"name": "two"}])
    write_json(broker.directory / "permissions.json", [permission("guest"), permission("guest", "two")])
    broker.start()
    channel = connect(broker, vhost="two").channel()
    channel.queue_declare("q", durable=True)
    publish_confirmed(channel, "q", [b"kept"])
    close_all()
    broker.stop()
    return broker


def warnings(broker, begin):
    return [line.split(" WARNING ")[1] for line in broker.lines[begin:] if " WARNING " in line]


def test_a_start_and_a_reload_name_the_users_and_vhosts_of_permissions_that_are_not_there(broker):
    names = [*(f"nobody {number}" for number in range(7)), "guest"]
    write_json(broker.directory / "permissions.json", [
        *(permission(name, vhost) for name in names for vhost in ("/", "two")), permission("guest", "tow")])
    write_json(broker.directory / "topic_permissions.json", [
        {"user": "gast", "vhost": "/", "exchange": "amq.topic", "write": "", "read": ""}])
    begin = len(broker.lines)
    broker.start()
    expected = [
        f"{broker.directory}/permissions.json: entries without effect, because there are no such users: "
        "'nobody 0', 'nobody 1', 'nobody 2', 'nobody 3', 'nobody 4' and 2 more",
        f"{broker.directory}/permissions.json: entries without effect, because there are no such vhosts: 'tow'",
        f"{broker.directory}/topic_permissions.json: entries without effect, because there are no such users: "
        "'gast'",
    ]
    assert warnings(broker, begin) == expected
    begin = len(broker.lines)
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for_log("INFO    reloaded", begin)
    assert warnings(broker, begin) == expected


def test_the_folder_of_a_vhost_that_is_not_listed_any_more_is_named_and_its_messages_stay(broker):
    write_json(broker.directory / "vhosts.json", [{"name": "/"}])
    write_json(broker.directory / "permissions.json", [permission("guest")])
    begin = len(broker.lines)
    broker.start()
    assert warnings(broker, begin) == [
        f"{broker.directory / folder_name('two')}: the folder of vhost 'two', which is not in vhosts.json: its queues "
        "and messages stay there, and no client can reach them"]
    broker.stop()
    write_json(broker.directory / "vhosts.json", [{"name": "/"}, {"name": "two"}])
    write_json(broker.directory / "permissions.json", [permission("guest"), permission("guest", "two")])
    begin = len(broker.lines)
    broker.start()
    assert warnings(broker, begin) == []
    assert connect(broker, vhost="two").channel().basic_get("q")[2] == b"kept"
    close_all()


def test_other_folders_are_not_taken_for_a_vhosts(broker):
    (broker.directory / ("0" * 40)).mkdir()
    (broker.directory / "something").mkdir()
    begin = len(broker.lines)
    broker.start()
    assert warnings(broker, begin) == []


def test_a_start_says_what_is_gone_with_a_missing_file(broker):
    for name in ("permissions.json", "vhosts.json"):
        (broker.directory / name).unlink()
    begin = len(broker.lines)
    broker.start()
    told = warnings(broker, begin)
    assert f"{broker.directory}/permissions.json: was missing, and is made anew: the default user may do everything " \
        "in vhost '/', and no other user has any rights" in told
    assert f"{broker.directory}/vhosts.json: was missing, and is made anew: the only vhost is '/', without limits" \
        in told


def test_topic_permissions_that_are_removed_hold_up_no_reload(broker):
    path = broker.directory / "topic_permissions.json"
    write_json(path, [{"user": "guest", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": ""}])
    broker.start()
    path.unlink()
    begin = len(broker.lines)
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("reload(ed|:)", begin)
    broker.wait_for_log("INFO    reloaded", begin)
