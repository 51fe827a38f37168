"""Makes the pictures of docs/web.md: `.venv/bin/python -m tests.web.screenshots`.  A broker with a small shop is shown.

Pictures change with each run, as times and numbers do, so a change of one page takes the picture of that page alone:
`.venv/bin/python -m tests.web.screenshots log users`.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pika
from playwright.sync_api import sync_playwright
from tests.broker import ROOT
from tests.management.http import Http
from tests.web.conftest import Site

IMAGES = ROOT / "docs" / "images"
PAGES = {  # name of the picture: page
    "queues": "queues", "streams": "streams", "stream": "streams/%2F/events", "exchanges": "exchanges",
    "exchange": "exchanges/%2F/shop", "connections": "connections", "channels": "channels", "policies": "policies",
    "shovels": "shovels", "federation": "federation", "users": "users", "vhosts": "vhosts", "changes": "changes",
    "log": "log", "audits": "audits", "traces": "traces", "definitions": "definitions",
}  # fmt: skip


def fill(site):
    """Something of everything; returns the channel that must stay open."""
    http, channel = Http(site.port), site.client()
    channel.exchange_declare("shop", "topic", durable=True)
    for queue, key in (("orders", "order.#"), ("invoices", "order.paid"), ("parcels", "order.paid"), ("mails", "#")):
        channel.queue_declare(queue, durable=True, arguments={"x-order-journal": True})
        channel.queue_bind(queue, "shop", key)
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    channel.queue_bind("events", "shop", "#")
    http.do("tracer", "start", name="invoices", pattern="deliver.invoices", format="json")
    http.do("tracer", "start", name="shop", pattern="publish.shop")
    for number in range(40):
        body = json.dumps({"order": number, "customer": f"c{number % 7}"}).encode()
        channel.basic_publish("shop", "order.paid" if number % 3 else "order.new", body,
                              pika.BasicProperties(delivery_mode=2, content_type="application/json"))
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("orders", lambda *_: None, consumer_tag="billing")
    channel.basic_consume("events", lambda *_: None, consumer_tag="statistics",
                          arguments={"x-stream-offset": "first", "x-stream-reader": "statistics"})
    channel.connection.process_data_events(0.5)
    channel.basic_get("invoices")
    http.do("tracer", "stop", name="invoices")
    http.do("policy", "set", name="short", pattern="^mails", definition={"max-length": 10000}, apply_to="queues")
    http.do("vhost", "add", vhost="staging")
    for user, tag in (("ann", "monitoring"), ("bob", "policymaker")):
        http.do("user", "add", user=user, password="secret", tags=[tag])
        http.do("permission", "set", user=user, configure="^orders", write=".*", read=".*")
    taken = http.do("message", "receive", queue="parcels", count=3)["items"]
    http.do("message", "nack", queue="parcels", receipts=taken[0]["receipt"])
    http.do("message", "receive", queue="parcels", count=1)
    for glob in ("orders", "parcels"):
        http.do("run", "show", id=http.do("run", "audit", queues=glob)["id"], wait=3600)
    http.do("shovel", "set", name="archive", definition={
        "src-uri": "amqp://", "src-queue": "parcels", "dest-uri": "amqp://127.0.0.1:1", "dest-queue": "parcels"})
    return channel


def main():
    """Take the pictures that the command line names, or all."""
    chosen = sys.argv[1:] or list(PAGES)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        site = Site(Path(folder) / "data", browser)
        channel = fill(site)
        window = site.open("overview", height=760)
        for name in chosen:
            window.goto(site.address(PAGES[name]))
            window.locator("main .scroll, main .card").first.wait_for()
            window.wait_for_timeout(700)  # until what a page asks for is drawn
            window.screenshot(path=IMAGES / f"{name}.png")
        channel.connection.close()
        browser.close()
        site.end()


if __name__ == "__main__":
    main()
