"""Pages that change something: each change is seen by a client, or by the broker's own lists."""

import json

import pika
import pytest
from playwright.sync_api import expect
from tests.web.conftest import MS, log_in

expect.set_options(timeout=MS)


def confirm(window, label):
    """Say yes to the question that stands behind a button."""
    window.get_by_role("dialog").get_by_role("button", name=label, exact=True).click()


def test_a_queue_is_declared_purged_and_deleted(site):
    window = site.open("queues")
    window.get_by_role("button", name="New queue").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name").fill("made here")
    dialog.get_by_label("Arguments").fill('["no object"]')
    dialog.get_by_role("button", name="Declare").click()
    expect(dialog.get_by_role("alert")).to_contain_text("must be a JSON object")
    dialog.get_by_label("Arguments").fill('{"x-max-length": "many"}')
    dialog.get_by_role("button", name="Declare").click()
    expect(window.locator(".notice.bad")).to_contain_text("x-max-length")
    dialog.get_by_label("Arguments").fill('{"x-max-length": 5}')
    dialog.get_by_role("button", name="Declare").click()
    expect(window.locator(".notice")).to_have_text("Queue made here is declared.")
    channel = site.client()
    channel.queue_declare("made here", durable=True, arguments={"x-max-length": 5})
    channel.basic_publish("", "made here", b"short-lived")
    window.get_by_role("link", name="made here").click()
    ready = window.locator(".number", has_text="Ready").locator("b")
    expect(ready).to_have_text("1")
    window.get_by_role("button", name="Purge").click()
    confirm(window, "Purge")
    expect(ready).to_have_text("0")
    window.get_by_role("button", name="Delete", exact=True).click()
    confirm(window, "Delete")
    expect(window.get_by_role("heading", name="Queues")).to_be_visible()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("made here", passive=True)
    channel.connection.close()


def test_an_exchange_is_declared_and_bound(site):
    channel = site.client()
    channel.queue_declare("goal")
    window = site.open("exchanges")
    window.get_by_role("button", name="New exchange").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name").fill("fresh")
    dialog.get_by_label("Type").select_option("topic")
    dialog.get_by_role("button", name="Declare").click()
    window.get_by_role("link", name="fresh").click()
    card = window.locator(".card", has_text="Messages go on to")
    card.get_by_role("button", name="Bind").click()
    dialog.get_by_label("Its name").fill("goal")
    dialog.get_by_label("Routing key").fill("a.*")
    dialog.get_by_role("button", name="Bind").click()
    expect(card.locator("tbody tr")).to_contain_text("a.*")
    channel.confirm_delivery()
    channel.basic_publish("fresh", "a.b", b"arrives", mandatory=True)
    card.get_by_role("button", name="Unbind").click()
    expect(card.get_by_text("No bindings.")).to_be_visible()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("fresh", "a.b", b"does not", mandatory=True)
    window.get_by_role("button", name="Delete", exact=True).click()
    confirm(window, "Delete")
    expect(window.get_by_role("heading", name="Exchanges")).to_be_visible()
    channel.connection.close()


def test_a_policy_shows_what_it_matches_before_it_is_in_force(site):
    channel = site.client()
    for name in ("mail.in", "mail.out", "post"):
        channel.queue_declare(name)
    window = site.open("policies")
    window.get_by_role("button", name="New policy").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Pattern").fill("^mail(")
    expect(dialog.locator(".wrong")).to_contain_text("regular expression")
    dialog.get_by_label("Pattern").fill("^mail")
    expect(dialog.locator(".preview")).to_contain_text("2 queues: mail.in, mail.out")
    dialog.get_by_label("Name").fill("short")
    dialog.get_by_label("Gives").fill('{"max-length": 2}')
    dialog.get_by_role("button", name="Set").click()
    expect(window.locator(".notice")).to_have_text("Policy short is in force.")
    for _ in range(5):
        channel.basic_publish("", "mail.in", b"mail")
    assert channel.queue_declare("mail.in", passive=True).method.message_count == 2
    window.goto(site.address("queues/%2F/mail.in"))
    rules = window.locator(".card", has_text="Rules in effect")
    expect(rules).to_contain_text("short")
    expect(rules).to_contain_text("max-length")
    window.goto(site.address("policies"))
    window.locator("tr", has_text="short").get_by_role("button", name="Delete").click()
    confirm(window, "Delete")
    expect(window.locator("tr", has_text="short")).to_have_count(0)
    channel.connection.close()


def test_a_user_gets_permissions_and_sees_only_what_its_tag_allows(site):
    window = site.open("users")
    window.get_by_role("button", name="New user").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name").fill("clerk")
    dialog.get_by_label("Password").fill("a long secret")
    dialog.get_by_label("Tags").fill("management")
    dialog.get_by_role("button", name="Add").click()
    expect(window.locator(".notice")).to_contain_text("User clerk is added.")
    window.get_by_role("button", name="Permissions of clerk").click()
    expect(dialog).to_contain_text("This user may enter no vhost.")
    dialog.get_by_role("button", name="Give").click()
    expect(dialog.locator("tbody tr")).to_contain_text("/")
    other = site.open("overview", "clerk", "a long secret")
    expect(other.locator(".number", has_text="Queues")).to_be_visible()
    links = other.get_by_role("navigation", name="Pages").get_by_role("link")
    assert links.all_text_contents() == [
        "Overview", "Queues", "Streams", "Exchanges", "Connections", "Channels", "Policies",
        "Shovels", "Federation"]
    other.goto(site.address("policies"))
    other.get_by_role("heading", name="Operator policies").wait_for()
    expect(other.get_by_role("button", name="New policy")).to_have_count(0)
    other.goto(site.address("users"))
    expect(other.get_by_role("heading", name="There is no such page")).to_be_visible()
    dialog.get_by_role("button", name="Close dialog").click()
    window.locator("tr", has_text="clerk").get_by_role("button", name="Delete").click()
    confirm(window, "Delete")
    expect(window.locator("tr", has_text="clerk")).to_have_count(0)
    other.goto(site.address("queues"))
    expect(other.get_by_role("button", name="Log in")).to_be_visible()


def test_a_connection_is_closed(site):
    connection = pika.BlockingConnection(pika.ConnectionParameters(
        "127.0.0.1", site.broker.port, client_properties={"connection_name": "to be closed"}))
    window = site.open("connections")
    row = window.locator("tr", has_text="to be closed")
    row.get_by_role("button", name="Close").click()
    confirm(window, "Close")
    expect(row).to_have_count(0)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(time_limit=MS / 1000)


def test_a_vhost_comes_and_goes(site):
    window = site.open("vhosts")
    window.get_by_role("button", name="New vhost").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name").fill("annex/2")
    dialog.get_by_role("button", name="Add").click()
    row = window.locator("tr", has_text="annex/2")
    expect(row).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    confirm(window, "Delete")
    expect(row).to_have_count(0)


def test_a_message_is_published_found_without_being_taken_and_traced(site):
    channel = site.client()
    channel.queue_declare("letters", durable=True)
    window = site.open("queues/%2F/letters")
    window.get_by_role("button", name="Publish").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Payload").fill("Dear reader")
    dialog.get_by_label("Headers").fill('{"tenant": "north", "page": 7}')
    dialog.get_by_role("button", name="Publish").click()
    expect(window.locator(".notice")).to_have_text("The message is in.")
    channel.basic_publish("", "letters", b"another")
    window.get_by_label("Payload contains").fill("reader")
    window.get_by_label("Header is").fill("page = 7")
    window.get_by_role("button", name="Browse").click()
    message = window.locator(".message")
    expect(message).to_have_count(1)
    expect(message).to_contain_text("Dear reader")
    expect(message).to_contain_text("north")
    message.get_by_role("button", name="Trace 1").click()
    expect(window.locator(".timeline")).to_contain_text("enqueued")
    window.get_by_label("Header is").fill("page = 8")
    window.get_by_role("button", name="Browse").click()
    expect(window.get_by_text("There is no message that matches.")).to_be_visible()
    method, properties, body = channel.basic_get("letters", auto_ack=True)
    assert (body, properties.headers) == (b"Dear reader", {"tenant": "north", "page": 7})
    assert not method.redelivered
    channel.connection.close()


def test_a_form_stays_open_though_the_broker_cannot_say_what_is_behind_it(site):
    channel = site.client()
    channel.queue_declare("begun", durable=True)
    window = site.open("queues/%2F/begun")
    window.get_by_role("button", name="Publish").click()
    payload = window.get_by_role("dialog").get_by_label("Payload")
    payload.fill("Dear reader")
    window.route("**/api/queues/**", lambda route: route.fulfill(status=500, json={"reason": "something went wrong"}))
    with window.expect_response(lambda response: response.status == 500):
        pass
    window.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(payload).to_have_value("Dear reader")
    channel.connection.close()


def test_the_buttons_of_a_queue_are_seen_at_once_when_all_are_known(site):
    channel = site.client()
    channel.queue_declare("known", durable=True)
    window, held = site.window(), []
    window.route("**/api/v2/queue/purge", lambda route: held.append(route))
    with window.expect_response(lambda response: response.url.endswith("/api/v2/message/publish")):
        window.goto(site.address("queues/%2F/known"))
        log_in(window, "guest", "guest")
    button = window.locator("button", has_text="Publish")
    expect(button).to_be_attached()
    expect(button).to_be_hidden()
    held.pop().continue_()
    expect(button).to_be_visible()
    expect(window.get_by_role("button", name="Purge")).to_be_visible()
    channel.connection.close()


def test_chosen_messages_are_moved_and_deleted_and_the_others_stay(site):
    channel = site.client()
    channel.queue_declare("from here", durable=True)
    channel.queue_declare("to there", durable=True)
    channel.confirm_delivery()
    for number in range(30):
        channel.basic_publish("", "from here", b"message %d" % number)
    window = site.open("queues/%2F/from%20here")
    window.get_by_role("button", name="Browse").click()
    messages = window.locator(".message")
    expect(messages).to_have_count(25)
    window.get_by_role("button", name="More").click()
    expect(messages).to_have_count(30)
    for seq in (3, 30):
        window.get_by_label(f"Choose message {seq}", exact=True).check()
    window.get_by_role("button", name="Move or copy").click()
    window.get_by_role("dialog").get_by_label("To queue").fill("to there")
    held = []
    window.route("**/api/v2/message/browse", lambda route: held.append(route))
    with window.expect_request("**/api/v2/message/browse"):
        window.get_by_role("dialog").get_by_role("button", name="Do it").click()
    expect(window.locator(".notice")).to_have_text("2 messages moved.")
    window.get_by_label("Choose message 1", exact=True).check()
    window.get_by_role("button", name="Delete chosen").click()
    held.pop().continue_()      # The list without those that were moved comes late, and takes no choice back.
    expect(messages).to_have_count(25)
    confirm(window, "Delete chosen")
    expect(window.locator(".notice")).to_have_text("1 message deleted.")
    assert [channel.basic_get("to there", auto_ack=True)[2] for _ in range(2)] == [b"message 2", b"message 29"]
    left = [channel.basic_get("from here", auto_ack=True)[2] for _ in range(27)]
    assert left == [b"message %d" % number for number in range(30) if number not in (0, 2, 29)]
    channel.connection.close()


def test_a_queue_is_paused_and_goes_on(site):
    channel = site.client()
    channel.queue_declare("resting", durable=True)
    channel.basic_publish("", "resting", b"waits")
    window = site.open("queues/%2F/resting")
    tag = window.locator(".title .tag", has_text="paused")
    expect(tag).to_have_count(0)
    window.get_by_role("button", name="Pause", exact=True).click()
    expect(window.locator(".notice")).to_have_text("Queue resting is paused.")
    expect(tag).to_be_visible()
    expect(window.locator(".card", has_text="Because")).to_contain_text("an operator has paused the queue")
    assert channel.basic_get("resting", auto_ack=True)[2] is None
    window.get_by_role("button", name="Resume", exact=True).click()
    expect(tag).to_have_count(0)
    assert channel.basic_get("resting", auto_ack=True)[2] == b"waits"
    channel.connection.close()


def test_a_message_group_is_paused_and_goes_on(site):
    channel = site.client()
    channel.queue_declare("grouped", durable=True, arguments={"x-message-group": "exclusive",
                                                             "x-message-group-header": "x-group-id"})
    channel.confirm_delivery()
    for name in ("blue", "green"):
        channel.basic_publish("", "grouped", b"first", pika.BasicProperties(headers={"x-group-id": name}))
    window = site.open("queues/%2F/grouped")
    row = window.locator("tr", has=window.get_by_role("cell", name="blue", exact=True))
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    channel.basic_consume("grouped", lambda *_: None)
    green = window.locator("tr", has=window.get_by_role("cell", name="green", exact=True))
    expect(green).to_contain_text("locked")
    row.get_by_role("button", name="Go on").click()
    expect(row).to_contain_text("locked")
    channel.connection.close()


def test_definitions_are_exported_and_an_import_says_first_what_it_would_change(site, tmp_path):
    window = site.open("definitions")
    with window.expect_download() as download:
        window.get_by_role("button", name="Download definitions").click()
    definitions = json.loads(download.value.path().read_text())
    assert "guest" in [user["name"] for user in definitions["users"]]
    definitions["queues"].append({"name": "imported", "vhost": "/", "durable": True, "auto_delete": False,
                                  "arguments": {}})
    file = tmp_path / "more.json"
    file.write_text("{broken")
    window.locator("#file").set_input_files(file)
    expect(window.get_by_role("alert")).to_contain_text("more.json")
    file.write_text(json.dumps(definitions))
    window.locator("#file").set_input_files(file)
    expect(window.get_by_text("1 change.")).to_be_visible()
    expect(window.locator("tbody tr")).to_contain_text("imported")
    channel = site.client()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("imported", passive=True)
    window.get_by_role("button", name="Import more.json").click()
    expect(window.locator(".notice")).to_have_text("more.json is imported: 1 change.")
    other = channel.connection.channel()
    other.queue_declare("imported", passive=True)
    other.connection.close()
