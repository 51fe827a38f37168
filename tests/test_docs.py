"""What the documents say is tried: their Python blocks run, their tables and links are held against the source."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from tests.broker import SECONDS, Broker, environment

from brokerd import errors
from brokerd.arguments import BY_NAME as QUEUE_ARGUMENTS
from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit, exit_status
from brokerd.auditor import report
from brokerd.config import OPTIONS
from brokerd.policies.keys import KEYS
from brokerd.session import basic, topology

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "brokerd"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Runs a block as it stands, only that the port clients use by themselves is the test's broker's.
RUNNER = """
import pika, runpy, sys
pika.connection.Parameters.DEFAULT_PORT = int(sys.argv[1])
runpy.run_path(sys.argv[2])
"""


def text_of(page):
    return page.read_text(encoding="utf-8")


def blocks(page):
    return PYTHON_BLOCK.findall(text_of(page))


def table_rows(page, heading, which=1):
    """The cells of each row of the first table below ``heading``, or of a later one, without its head."""
    below = text_of(page).split(f"\n{heading}\n", 1)[1]
    lines = re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE)[which - 1].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def run_block(block, number, directory, port):
    script = directory / f"block{number}.py"
    script.write_text(block, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, str(port), str(script)],
        env=environment(), cwd=directory, capture_output=True, text=True, timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture
def demo(tmp_path):
    """A broker as ``make run`` starts it: its data in ``data`` beside where the scripts run."""
    with Broker(tmp_path / "data") as broker:
        yield broker


def test_readme_publishes_and_consumes_in_order(demo, tmp_path):
    publish, consume = blocks(ROOT / "README.md")
    assert run_block(publish, 1, tmp_path, demo.port) == ""
    assert run_block(consume, 2, tmp_path, demo.port) == "".join(f"{n + 1} message {n}\n" for n in range(5))
    assert run_block(consume, 3, tmp_path, demo.port) == ""


def test_what_readme_published_survives_kill_9(demo, tmp_path):
    publish, consume = blocks(ROOT / "README.md")
    run_block(publish, 1, tmp_path, demo.port)
    demo.restart(kill=True)
    assert len(run_block(consume, 2, tmp_path, demo.port).splitlines()) == 5


def test_order_can_be_read_from_the_files_as_the_manual_shows(demo, tmp_path):
    run_block(blocks(ROOT / "README.md")[0], 1, tmp_path, demo.port)
    (show,) = blocks(ROOT / "docs" / "ordering.md")
    name, *lines = run_block(show, 2, tmp_path, demo.port).splitlines()
    assert name == "hello"
    rows = [[int(cell) for cell in line.split()] for line in lines]
    assert [(seq, channel, publish) for seq, _, _, channel, publish in rows] == [(n, 1, n) for n in range(1, 6)]
    assert len({connection for _, _, connection, _, _ in rows}) == 1


def test_a_retry_queue_and_deduplication_do_what_the_manual_says(demo, tmp_path):
    retry, deduplication = blocks(ROOT / "docs" / "queues.md")
    assert run_block(retry, 1, tmp_path, demo.port) == "try 1\ntry 2\ntry 3\n"
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=demo.port))
    _, properties, body = connection.channel().basic_get("work.failed", auto_ack=True)
    deaths = [(death["queue"], death["reason"], death["count"]) for death in properties.headers["x-death"]]
    assert (body, deaths) == (b"an order", [("work.retry", "expired", 2), ("work", "rejected", 2)])
    connection.close()
    assert run_block(deduplication, 2, tmp_path, demo.port) == "1 1 2\n3\n4\n"


def test_a_password_hash_made_as_the_manual_shows_lets_a_user_in(tmp_path):
    from brokerd.auth.passwords import verify

    show, _ = blocks(ROOT / "docs" / "running.md")     # The other is in auth/test_hook.
    assert verify("the new password", run_block(show, 1, tmp_path, 0).strip())


def test_the_walk_through_the_order_comes_to_the_numbers_it_names(demo, tmp_path):
    for number, block in enumerate(blocks(ROOT / "docs" / "prove.md")):
        run_block(block, number, tmp_path, demo.port)

    def ctl(*arguments):
        return subprocess.run([sys.executable, "-m", "brokerd.cli.brokerctl", *arguments], env=environment(),
                              cwd=tmp_path, capture_output=True, text=True, check=True, timeout=SECONDS).stdout

    told = ctl("-D", "data", "queue", "ordering", "orders")
    rejected, again, overtakings = (re.search(rf"{name} +(\d+) +(\d+)\n", told).groups() for name in (
        "returned: reject", "delivered out of sequence", "messages that overtook a returned one"))
    assert (rejected, again) == (("5", "5"), ("4", "4")), told
    assert 4 <= int(overtakings[0]) == int(overtakings[1]) <= 4 * 9, told
    told = ctl("-D", "data", "message", "trace", "orders", "20")
    events = ("enqueued", "delivered", "returned", "delivered", "acked")
    assert re.findall(r"^ +\d{4}-\S+ \S+ +(?:\+\S+ \S+ +)?(\w+)", told, re.MULTILINE) == list(events), told
    ctl("-D", "data", "queue", "dump", "--queues", "orders", "./dump")
    assert "100 messages" in ctl("inspect", "./dump")
    (judged,) = audit(open_source(str(tmp_path / "dump")))
    rows = [row for row in judged.audits if row["verdict"] not in ("held", "covers nothing")]
    assert [(row["audit"], row["verdict"], row["found"]) for row in rows] == [("overtaking", "effects of use", 4)]
    assert exit_status(judged.audits) == 0
    assert [found["seq"] for found in judged.findings] == [20, 40, 60, 80]
    for found in judged.findings:
        line = report.trace_line(str(tmp_path / "dump"), found)
        done = subprocess.run(line, shell=True, env=environment(), capture_output=True, text=True, timeout=SECONDS)
        assert (done.returncode, done.stderr) == (0, ""), line
        assert done.stdout.startswith(f"message {found['seq']} of queue 'orders' in vhost '/': acked\n")


def test_the_table_of_the_audits_exit_statuses_is_whole():
    from brokerd.auditor.request import BAD_INPUT, INTERRUPTED, KEPT

    told = {int(status): text for status, text in table_rows(ROOT / "docs" / "prove.md", "## 6. The audit", 2)}
    rows = [{"audit": "fifo", "verdict": verdict} for verdict in ("held", "effects of use", "violated", "undecidable")]
    assert set(told) == {KEPT, BAD_INPUT, INTERRUPTED, *(exit_status([row]) for row in rows)}
    assert "effects of use" in told[exit_status(rows[1:2])]
    assert "violated" in told[exit_status(rows[2:3])]


def test_an_audit_without_a_folder_is_refused_before_anything_is_installed(tmp_path):
    done = subprocess.run(["make", "audit", f"VENV={tmp_path / 'none'}"], cwd=ROOT, env=environment(),
                          capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "make audit needs DIR=, a data directory, a dump or an archive" in done.stderr
    assert not (tmp_path / "none").exists()


# What each shell says to complete: a command line as a person types it up to the tab key.
ASKED = {
    "bash": """
for name in brokerd brokerctl brokerperf; do
    case $name in brokerd) word=--amqp-;; brokerctl) word=insp;; brokerperf) word=lat;; esac
    COMP_WORDS=($name $word) COMP_CWORD=1 COMPREPLY=()
    set -- $(complete -p $name | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    $1 $name
    echo "$name ${COMPREPLY[*]}"
done
""",
    "zsh": """
function compadd { print -r -- $name ${completions[*]} }
function _describe { print -r -- $name ${${completions_with_descriptions[*]}%%:*} }
for name word in brokerd --amqp- brokerctl insp brokerperf lat; do
    words=($name $word) CURRENT=2
    $_comps[$name]
done
""",
    "fish": """
for pair in 'brokerd --amqp-' 'brokerctl insp' 'brokerperf lat'
    echo (string split ' ' $pair)[1] (complete -C $pair | string replace -r '\t.*' '')
end
""",
}


@pytest.mark.parametrize(("shell", "begin"), [
    ("bash", ()), ("zsh", ("autoload -Uz compinit; compinit -u -D",)), ("fish", ())])
def test_the_lines_for_a_shell_make_it_complete(shell, begin, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not there")
    programs = Path(sys.executable).parent
    assert {"brokerd", "brokerctl", "brokerperf"} <= set(os.listdir(programs))
    section = text_of(ROOT / "docs" / "running.md").split("## Completion by the shell\n")[1].split("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ") and f"{shell}_source" in line]
    assert len(lines) == 3
    script = "\n".join([*begin, *lines, ASKED[shell]])
    env = environment({"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)})
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *quiet, "-c", script], env=env, capture_output=True, text=True, timeout=SECONDS)
    told = {name: words for name, *words in map(str.split, done.stdout.splitlines())}
    assert told == {"brokerd": ["--amqp-port"], "brokerctl": ["inspect"], "brokerperf": ["latency"]}, done.stderr


def test_the_page_on_streams_reads_all_from_the_first_each_time(demo, tmp_path):
    (block,) = blocks(ROOT / "docs" / "streams.md")
    assert run_block(block, 1, tmp_path, demo.port) == "".join(f"{n + 1} event {n}\n" for n in range(5))
    assert run_block(block, 2, tmp_path, demo.port) == "".join(f"{n + 1} event {n % 5}\n" for n in range(10))


def test_every_python_block_is_run_by_a_test_above():
    counts = {page.name: len(blocks(page)) for page in PAGES if blocks(page)}
    # Those of the recipes are run in spark: test_views.py, test_stream.py.
    # Those of testing.md are run in testing: test_examples.py; those of stream-week.md in spark: test_week.py; those of
    # groups.md in server: test_groups_page.py.
    assert counts == {"README.md": 2, "audit-recipes.md": 2, "groups.md": 5, "ordering.md": 1, "prove.md": 2,
                      "queues.md": 2, "running.md": 2, "stream-week.md": 7, "streams.md": 1,
                      "testing.md": 6}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert ROOT in there.parents, target
        if anchor:
            assert anchor in anchors(there), target


def test_every_page_of_the_manual_is_in_its_index():
    listed = set(LINK.findall(text_of(ROOT / "docs" / "index.md")))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed


def test_the_tour_names_files_that_are_there():
    tour = text_of(ROOT / "README.md").split("## Tour of the source")[1]
    named = re.findall(r"`([a-z_]+/[a-z_]*(?:\.\w+)?|[a-z_]+\.py)`", tour)
    assert len(named) > 20
    for name in named:
        assert (SOURCE / name).exists() or (SOURCE.parent / name).exists(), name


def test_contributing_names_files_that_are_there():
    text = text_of(ROOT / "CONTRIBUTING.md")
    for name in re.findall(r"`((?:[a-z_.]+/)+[a-z_.A-Z]*)`", text):
        if "<" not in name:
            assert (SOURCE / name).exists() or (ROOT / name).exists(), name


# --- options

def test_the_table_of_options_is_config_py():
    section = ""
    rows = table_rows(ROOT / "docs" / "running.md", "## Options")
    assert [row[1].strip("`") for row in rows] == list(OPTIONS)
    for shown_section, name, short, default, reloads, _ in rows:
        section = shown_section or section
        row = OPTIONS[name.strip("`")]
        assert section == row.option.section
        assert short.strip("`") == row.option.short
        shown = str(row.default).lower() if row.type is bool else str(row.default)
        assert default.strip("`") == (shown or "none"), name
        assert (reloads == "yes") == row.option.reloadable, name


def test_readme_gives_flags_and_defaults_as_they_are():
    for flags, default, _ in table_rows(ROOT / "README.md", "## Options"):
        names = re.findall(r"--?[a-zA-Z-]+", flags)
        if "--config" in names or "--no-sync" in names:
            continue
        row = next(row for row in OPTIONS.values() if row.flag in names)
        assert row.option.short in names
        assert default == f"`{row.default}`"


# --- protocol

def test_every_method_a_client_may_send_is_in_the_manual():
    manual = text_of(ROOT / "docs" / "protocol.md")
    for name in (*topology.HANDLERS, *basic.HANDLERS):
        assert f"`{name}`" in manual, name


def reply_rows():
    rows = table_rows(ROOT / "docs" / "protocol.md", "## What bad input is answered")
    return [row for row in rows if row[1][:1].isdigit() and not row[1].startswith("312")]


def test_reply_codes_in_the_manual_are_those_of_the_errors():
    known = set()
    waiting = [errors.AMQPError]
    while waiting:
        cls = waiting.pop()
        known.add((f"{cls.reply_code} {cls.name}", "connection" if cls.hard else "channel"))
        waiting += cls.__subclasses__()
    assert len(reply_rows()) > 40
    for you, code, ends, _ in reply_rows():
        assert (code, ends) in known, you


def literals():
    """All that the source says in strings: what stands between the values that are put in."""
    texts = []
    for path in SOURCE.rglob("*.py"):
        nodes = ast.walk(ast.parse(text_of(path)))
        texts += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts += [text_of(path) for path in SOURCE.glob("plane/*.px*")]
    return "\n".join(texts)


# What the manual puts where the source puts a value.
VALUES = re.compile(
    r"'(?:x|y|q|v|u|t|x-max-length|x-priority|durable|true|false|amq\.x|amq\.direct|tx\.select|X|rk)'|\b[NMTSC]\b|\b131072\b|\bPLAIN\b"
    r"|\b(?:queue|exchange)\b|\bframe_max\b|\bhigher\b|\bmaximum\b|\bconfigure\b|\bvhost v\b|\b60\b|tx\.select"
    r"|<<\"x\">>|longstr|\{value_negative,-1\}|No space left on device"
)


def test_reply_texts_in_the_manual_are_those_of_the_source():
    said = literals()
    for you, _, _, texts in reply_rows():
        for text in re.findall(r"`([^`]+)`", texts):
            if " " not in text:
                continue        # a word that the sentence around it speaks of
            for part in VALUES.split(text):
                assert part.strip(" .,:(){}") in said, (you, part)


QUEUE_TYPES = {"all": {"classic", "quorum", "stream"}, "classic, quorum": {"classic", "quorum"}, "classic": {"classic"},
               "quorum": {"quorum"}, "stream": {"stream"}}


def test_the_table_of_queue_arguments_is_arguments_py():
    rows = table_rows(ROOT / "docs" / "queues.md", "## Arguments")
    assert [row[0].strip("`") for row in rows] == list(QUEUE_ARGUMENTS)
    for name, types, by_policy, *_ in rows:
        row = QUEUE_ARGUMENTS[name.strip("`")]
        assert QUEUE_TYPES[types] == set(row.types), name
        ways = "policy, operator" if row.operator else "policy" if row.policy_key else ""
        assert by_policy == ways, name


def test_the_words_an_argument_may_be_are_those_of_the_source():
    for name, types, _, values, default, _ in table_rows(ROOT / "docs" / "queues.md", "## Arguments"):
        row = QUEUE_ARGUMENTS[name.strip("`")]
        of_type = {} if types in ("all", "both", "classic") else {"x-queue-type": types}
        for word in re.findall(r"`([\w-]+)`", values):
            assert row.check(word, of_type) is None, (name, word)
        if default.startswith("`"):
            assert row.check(default.strip("`"), of_type) is None, name


def test_the_table_of_policy_keys_is_keys_py():
    rows = table_rows(ROOT / "docs" / "queues.md", "## Policies")
    assert {row[0].strip("`") for row in rows} == set(KEYS) - {row.policy_key for row in QUEUE_ARGUMENTS.values()}
    for key, operator, *_ in rows:
        assert (operator == "yes") == KEYS[key.strip("`")].operator, key


# --- the unit

def test_the_unit_starts_brokerd_with_a_flag_it_has():
    unit = text_of(ROOT / "config" / "brokerd.service")
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1).split()
    assert os.path.basename(command[0]) == "brokerd"
    assert command[1] == "--config"
