"""The laws of the house as tests: who may import whom, what may wait, how long things may be, what is tested where.

A list of exceptions is a ratchet: what stands in it has a reason, and may not grow; what needs it no
longer must leave it.
"""

import ast
import functools
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import brokerd

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "brokerd"
TESTS = ROOT / "tests"

# Higher numbers may import lower ones, never the same.
FLOORS = (
    ("errors", "clock", "settings", "command_line", "named_file", "local_socket", "json_text"),
    ("wire",),
    ("arguments", "patterns", "pieces"),
    ("plane", "links"),
    ("store",),
    ("auth", "policies", "audit"),
    ("exchanges",),
    ("queues",),
    ("vhost",),
    ("upkeep",),
    ("alarms", "descriptors", "hoarders"),
    ("node",),
    ("operations",),
    ("session",),
    ("config",),                # What it says is handed down as values: nothing below the process reads it.
    ("server",),
    ("management", "client", "spans"),
    ("carriers",),
    ("auditor",),
    ("spark",),
    ("cli", "testing"),
    ("__main__",),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
# (module, what it imports against the floors): why that is no harm
UPWARD_IMPORTS: dict[tuple[str, str], str] = {}

FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS: dict[tuple[str, str], int] = {}     # (file, function): lines it has, with the reason beside it
FILE_LINES_MAX = 600
LONG_FILES = {
    "wire/methods.pyi": 640,        # a class for each method of the table, for type checkers: a test keeps it in step
}
PYTHON = sorted(SOURCE.rglob("*.py"))
CYTHON = sorted([*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxi"), *SOURCE.rglob("*.pxd")])
SOURCES = [*PYTHON, *CYTHON, *sorted([*SOURCE.rglob("*.pyi"), *SOURCE.rglob("*.h")])]

# Modules whose tests are not in tests/<package>/test_<module>.py: where they are, and why.
TESTED_ELSEWHERE = {
    "plane/reader": "plane/test_stream.py",
    "client/_relay": "client/test_relay.py",
    "client/numbers": "client/test_relay.py",
    "client/octets": "client/test_relay.py",
    "client/frames": "client/test_relay.py",
    "client/header": "client/test_relay.py",
    # What they do is seen where whole links run.
    "carriers/carriage": "carriers/test_shovel.py",
    "carriers/main": "server/test_links.py",
    "carriers/rewriting": "carriers/test_shovel.py",
    "server/child": "server/test_management.py",
    "spans/main": "server/test_spans.py",
    "session/internal": "server/test_links.py",
    "session/transaction_stores": "session/test_transactions.py",
    "operations/trace_file": "operations/test_tracing.py",
    "operations/tracer": "operations/test_tracing.py",
    # Too small to be wrong alone; said through what uses them.
    "clock": "server/test_launch.py",
    "settings": "server/test_values.py",
    "errors": "session/test_connection.py",
    "exchanges/comparable": "exchanges/test_headers.py",
    "exchanges/default": "exchanges/test_exchange.py",
    "exchanges/direct": "exchanges/test_exchange.py",
    "exchanges/fanout": "exchanges/test_exchange.py",
    "exchanges/destinations_of_key": "exchanges/test_topic.py",
    "vhost/names": "session/test_topology.py",
    "audit/layout": "store/test_reading.py",
    "plane/dues": "plane/test_retry.py",
    "plane/put": "plane/test_publish.py",
    # Parts of reading one segment; said through it.
    "audit/_journal": "audit/test_segment.py",
    "audit/fetch": "audit/test_segment.py",
    "spark/bounds": "spark/test_source.py",
    "spark/tables": "spark/test_source.py",
    "spark/packs": "spark/test_source.py",
    "spark/small_tables": "spark/test_views.py",
    "spark/engine": "spark/test_audit.py",
    "spark/agreement": "spark/test_checks.py",
    "spark/lives": "spark/test_checks.py",
    "spark/missing": "spark/test_checks.py",
    "spark/checks_cases": "spark/test_checks.py",
    "spark/checks_counts": "spark/test_checks.py",
    "spark/checks_deliveries": "spark/test_checks.py",
    "spark/checks_holders": "spark/test_checks.py",
    "spark/checks_places": "spark/test_checks.py",
    "spark/session": "spark/test_cluster.py",
    # Operations on a running broker, all in one table.
    **{f"operations/{name}": "server/test_operations.py" for name in (
        "binding", "changing", "channel", "connection", "consumer", "counting", "describing", "exchange",
        "definitions", "definitions_export", "definitions_file", "definitions_import", "global_parameter", "node",
        "operator_policy", "parameter", "permission", "policies", "policy",
        "messages", "topic_permission", "user", "users", "vhost", "vhost_end",
    )},
    "operations/parameters": "management/test_rabbit_links.py",
    "operations/changes": "operations/test_change.py",
    "operations/run": "operations/test_runs.py",
    "auditor/asked": "operations/test_runs.py",
    "management/run_files": "operations/test_runs.py",
    "cli/ctl_restore": "operations/test_backup.py",
    "auth/logins": "server/test_limits.py",
    "session/grants": "server/test_tokens.py",
    "policies/parameters": "server/test_operations.py",
    # Parts of one HTTP answer, said by asking for it.
    "management/answers": "management/test_v2.py",
    "management/app": "management/test_v2.py",
    "management/main": "server/test_management.py",
    "management/table": "management/test_routes.py",
    "management/rabbit": "management/test_rabbit_read.py",
    "management/rabbit_shapes": "management/test_rabbit_read.py",
    # Seen only in a running process.
    "node": "server/test_launch.py",
    "testing/server": "testing/test_broker.py",
    "cli/perfclient": "cli/test_brokerperf.py",
    "cli/perfproc": "cli/test_brokerperf.py",
    "cli/perfrun": "cli/test_brokerperf.py",
    "cli/perfwatch": "cli/test_brokerperf.py",
    "cli/perfout": "cli/test_perfscenarios.py",
    "cli/_perf": "cli/test_brokerperf.py",
    "cli/perf_run": "cli/test_brokerperf.py",
    # Parts of one compiled unit whose verbs are another part's.
    "plane/chunk": "plane/test_rules.py",
    "plane/confirms": "plane/test_settle.py",
    "plane/deadlines": "plane/test_expiry.py",
    "plane/fate": "plane/test_settle.py",
    "plane/layout": "plane/test_inspect.py",
    "plane/limits": "plane/test_rules.py",
    "plane/places": "plane/test_aside.py",
    "plane/recovery": "plane/test_queue.py",
    "plane/sync": "plane/test_core.py",
    "plane/routes": "plane/test_publish.py",
    "plane/channel": "plane/test_connection.py",
    "plane/heap": "plane/test_store.py",
    "plane/_plane": "plane/test_inspect.py",
    "plane/_asserted": "plane/test_check.py",
}


@functools.cache
def parsed(path):
    """The syntax tree of a file, which many tests look at and none changes."""
    return ast.parse(path.read_text())


def short(path):
    return path.relative_to(SOURCE).as_posix()


def module_name(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(["brokerd", *parts]).removesuffix(".__init__")


def package(module):
    """``session`` of ``brokerd.session.basic``; "" for brokerd itself."""
    return module.partition(".")[2].partition(".")[0]


def is_type_checking(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported_modules(path):
    """Every module of brokerd that the file imports when it runs, at its top or later."""
    found = set()
    waiting = [parsed(path)]
    own = module_name(path).split(".")
    if path.name != "__init__.py":
        own = own[:-1]
    while waiting:
        node = waiting.pop()
        if is_type_checking(node):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = own[: len(own) - node.level + 1] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= names if base == "brokerd" else {base}
        waiting += ast.iter_child_nodes(node)
    return {name for name in found if name.startswith("brokerd.")}


# --- who may import whom

@pytest.mark.parametrize("path", PYTHON, ids=short)
def test_imports_go_down_only(path):
    own = package(module_name(path))
    for target in sorted(imported_modules(path) - {"brokerd.__version__"}):
        other = package(target)
        if other != own and (short(path), target) not in UPWARD_IMPORTS:
            assert FLOOR[other] < FLOOR[own], f"{own} may not import {target}"


def inner_imports(path, modules):
    """Which of ``modules`` the file imports when it runs, at its top or later: ``from package import module`` too."""
    found = set()
    waiting = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if is_type_checking(node):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= modules else names | {node.module}
        waiting += ast.iter_child_nodes(node)
    return found & modules


def circles(graph):
    """The modules that can be come back to from themselves: those left when what imports nothing left is taken away."""
    left = {module: set(imports) for module, imports in graph.items()}
    while done := {module for module, imports in left.items() if not imports & left.keys()}:
        left = {module: imports for module, imports in left.items() if module not in done}
    while done := left.keys() - set().union(*left.values()):    # Those that only lead into a circle.
        left = {module: imports for module, imports in left.items() if module not in done}
    return left


def test_no_modules_of_a_package_import_each_other_in_a_circle():
    by_package = {}
    for path in PYTHON:
        by_package.setdefault(package(module_name(path)), {})[module_name(path)] = path
    for name, paths in by_package.items():
        found = circles({module: inner_imports(path, paths.keys()) for module, path in paths.items()})
        assert not found, f"{name}: {found}"


def test_a_circle_of_imports_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}).keys() == {"b", "c"}


def test_every_package_has_its_floor():
    names = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    names |= {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert names == set(FLOOR)


def test_compiled_parts_import_nothing_but_errors():
    for path in CYTHON:
        lines = re.findall(r"^\s*(?:from|c?import)\s+(brokerd\S*)", path.read_text(), re.MULTILINE)
        assert set(lines) <= {"brokerd.errors"}, short(path)


def test_what_a_reader_of_the_files_needs_is_the_layouts_and_how_to_read_them():
    allowed = {"brokerd.store.format", "brokerd.store.reading", "brokerd.store",
               "brokerd.plane"}         # the last to be quicker, where it is there
    for path in sorted((SOURCE / "audit").glob("*.py")):
        others = {name for name in imported_modules(path) if package(name) != "audit"}
        assert others - {"brokerd.__version__"} <= allowed, short(path)
        of_store = re.findall(r"from brokerd\.store import (.*)", path.read_text())
        assert set(of_store) <= {"format as layout", "reading"}, short(path)
    assert imported_modules(SOURCE / "store" / "reading.py") <= {
        "brokerd.store.checksums", "brokerd.store.format", "brokerd.store"}
    imports = [node for node in ast.parse((SOURCE / "store" / "format.py").read_text()).body
               if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        assert not any(name.startswith("brokerd") for name in names if name != "brokerd.store.checksums")
    assert imported_modules(SOURCE / "store" / "checksums.py") <= {"brokerd.plane"}


def test_upward_imports_are_still_there():
    for file, target in UPWARD_IMPORTS:
        assert target in imported_modules(SOURCE / file)


# --- what may wait, open, ask

BELOW_SERVER = [path for path in PYTHON if FLOOR.get(package(module_name(path)), 0) < FLOOR["server"]]


@pytest.mark.parametrize("path", BELOW_SERVER, ids=short)
def test_nothing_below_the_server_awaits_or_knows_a_loop(path):
    tree = parsed(path)
    for node in ast.walk(tree):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), node.lineno
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & {"asyncio", "uvloop", "selectors"}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in {"asyncio", "uvloop", "selectors"}


@pytest.mark.parametrize("path", BELOW_SERVER, ids=short)
def test_nothing_below_the_server_asks_the_time_by_itself(path):
    if short(path) == "clock.py":
        return
    for name in re.findall(r"\btime\.(?:time|time_ns|monotonic|monotonic_ns|perf_counter|sleep)\(", path.read_text()):
        pytest.fail(f"{name}: take the clock that is handed in")


@pytest.mark.parametrize("path", BELOW_SERVER, ids=short)
def test_nothing_below_the_server_reads_the_configuration(path):
    if short(path) == "config.py":
        return
    for node in ast.walk(parsed(path)):
        assert not (isinstance(node, ast.Attribute) and node.attr == "config"), node.lineno
        assert not (isinstance(node, ast.ImportFrom) and node.module == "brokerd.config"), node.lineno


# What a session may ask of a vhost by itself; all else goes through vhost/access.py, which knows the user.
BEFORE_THE_DOOR = frozenset({"name", "directory", "log", "commit_log", "appended", "on_disk",
                             "entries_on_disk"})


def is_a_vhost(node):
    return getattr(node, "id", None) == "vhost" or getattr(node, "attr", None) == "vhost"


@pytest.mark.parametrize("path", [path for path in PYTHON if package(module_name(path)) == "session"], ids=short)
def test_a_session_enters_a_vhost_by_its_one_door(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and is_a_vhost(node.value):
            assert node.attr in BEFORE_THE_DOOR, f"line {node.lineno}: vhost.{node.attr}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "channel":
            assert node.attr not in {"consume", "cancel", "get"}, f"line {node.lineno}: channel.{node.attr}"


# What a start does without: modules that cost more than they give at the top of a file.
HEAVY = frozenset({"numpy", "pydantic", "json", "tomllib", "hashlib", "secrets", "hmac", "shutil", "urllib", "ssl"})


NOT_IN_A_BROKER = ("cli", "audit", "auditor", "carriers", "client", "management", "spans", "spark", "testing")
ONLY_WITH_TLS = frozenset({  # heavy themselves
    "brokerd.server.tls", "brokerd.server.tls_certificates", "brokerd.server.tls_context", "brokerd.server.kernel_tls",
})


@pytest.mark.parametrize("path", [path for path in PYTHON if package(module_name(path)) not in NOT_IN_A_BROKER],
                         ids=short)
def test_heavy_modules_are_imported_where_they_are_needed(path):
    if module_name(path) in ONLY_WITH_TLS:
        return
    for node in parsed(path).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        assert not {name.partition(".")[0] for name in names} & HEAVY, node.lineno
        assert not ONLY_WITH_TLS & set(names), node.lineno


# --- the floors of the plane

PLANE = SOURCE / "plane"


def included_files():
    """The plane's files in the order in which they are compiled."""
    return re.findall(r'^include "(\w+\.pxi)"', (PLANE / "_plane.pyx").read_text(), re.MULTILINE)


def without_words(text):
    """Cython code without comments and docstrings."""
    return re.sub(r"#.*", "", re.sub(r'""".*?"""', "", text, flags=re.DOTALL))


def defined_functions():
    """Function name: the file of the plane that defines it, outside of a class."""
    found = {}
    for file in included_files():
        for head in re.finditer(r"^(?:cdef|def)\b(?! (?:class|extern|struct|enum)\b)[^=(\n]*?(\w+)\(",
                                (PLANE / file).read_text(), re.MULTILINE):
            found[head.group(1)] = file
    return found


def test_all_files_of_the_plane_are_included_once():
    files = included_files()
    assert sorted(files) == sorted(path.name for path in PLANE.glob("*.pxi"))


@pytest.mark.parametrize("file", included_files())
def test_a_file_of_the_plane_calls_only_files_before_it(file):
    order, defined = included_files(), defined_functions()
    calls = re.findall(r"(?<![\w.])(?<!def )(\w+)\(", without_words((PLANE / file).read_text()))
    upward = {name: defined[name] for name in calls
              if name in defined and order.index(defined[name]) > order.index(file)}
    assert not upward


# --- how long

def python_functions(path):
    """(name, lines) of each function of a Python file."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


CYTHON_FUNCTION = re.compile(r"( *)(?:cdef|cpdef|def)\b(?! (?:class|extern|struct|enum|union)\b)[^=()]*?(\w+)\(")


def cython_functions(path):
    """(name, lines) of each function of a Cython file: to the last line that is indented deeper than its head."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        head = CYTHON_FUNCTION.match(line)
        if head is None:
            continue
        depth, last = len(head.group(1)), number
        for at in range(number + 1, len(lines)):
            body = lines[at]
            if body.strip() and len(body) - len(body.lstrip()) <= depth:
                break
            if body.strip():
                last = at
        yield head.group(2), last - number + 1


def function_lengths():
    for path in PYTHON:
        yield from ((short(path), name, lines) for name, lines in python_functions(path))
    for path in CYTHON:
        yield from ((short(path), name, lines) for name, lines in cython_functions(path))


def test_functions_are_short():
    for file, name, lines in function_lengths():
        assert lines <= LONG_FUNCTIONS.get((file, name), FUNCTION_LINES_MAX), f"{file}: {name} has {lines} lines"


def test_cython_functions_are_measured():
    lengths = {name: lines for path in CYTHON for name, lines in cython_functions(path)}
    assert len(lengths) > 200
    assert lengths["deliver"] > 40
    assert lengths["begin_record"] > 20
    assert lengths["select_confirm"] == 4


def test_files_are_short():
    for path in SOURCES:
        lines = len(path.read_text().splitlines())
        assert lines <= LONG_FILES.get(short(path), FILE_LINES_MAX), f"{short(path)} has {lines} lines"


def test_exceptions_for_length_are_still_needed():
    lengths = {(file, name): lines for file, name, lines in function_lengths()}
    for key in LONG_FUNCTIONS:
        assert lengths.get(key, 0) > FUNCTION_LINES_MAX, key
    for name in LONG_FILES:
        assert len((SOURCE / name).read_text().splitlines()) > FILE_LINES_MAX, name


# --- what is said and tried

@pytest.mark.parametrize("path", PYTHON, ids=short)
def test_every_module_says_what_it_does(path):
    assert ast.get_docstring(parsed(path))


@pytest.mark.parametrize("path", CYTHON, ids=short)
def test_every_compiled_file_begins_with_what_it_does(path):
    first = next(line for line in path.read_text().splitlines() if not line.startswith("# cython:"))
    assert first.startswith(("# ", '"""')), first
    assert len(first) > 20


def modules_to_test():
    """All modules with something to test: ``wire/frames``, ``node``, ``plane/deliver``."""
    for path in [*PYTHON, *CYTHON]:
        if path.suffix != ".pxd" and path.name not in ("__init__.py", "__main__.py"):
            yield path.relative_to(SOURCE).with_suffix("").as_posix()


def own_tests(module):
    folder, _, name = module.rpartition("/")
    return "/".join(filter(None, [folder, f"test_{name}.py"]))


@pytest.mark.parametrize("module", sorted(modules_to_test()))
def test_every_module_has_its_tests(module):
    file = TESTED_ELSEWHERE.get(module, own_tests(module))
    assert (TESTS / file).exists(), f"tests/{file}"


def test_modules_tested_elsewhere_are_there_and_have_no_file_of_their_own():
    modules = set(modules_to_test())
    for module in TESTED_ELSEWHERE:
        assert module in modules, module
        assert not (TESTS / own_tests(module)).exists(), f"{module} has its own tests now: take it off the list"


# --- what is not to be in the repository

def tracked_files():
    if shutil.which("git") is None:
        pytest.skip("git is not there")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or not done.stdout:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


# Written apart, so that this file does not hold what it forbids.
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")
MACHINE = re.compile(r"(?<![\w.])/(?:wo" r"rk|ho" r"me|ro" r"ot|Us" r"ers|mn" r"t|tm" r"p)/")


def test_nothing_is_left_for_later_and_no_machine_is_named():
    for path in tracked_files():
        if path.suffix == ".png":
            continue  # Any letters may stand in it by chance.
        text = path.read_bytes().decode(errors="replace")
        for pattern in (UNFINISHED, MACHINE):
            found = pattern.search(text)
            assert not found, f"{path.relative_to(ROOT)}: {found and text[found.start():found.end() + 30]!r}"


def test_nothing_that_is_built_is_tracked():
    for path in tracked_files():
        assert path.suffix not in {".so", ".o", ".pyc"}, path
        assert not (path.suffix == ".c" and path.name.startswith("_")), path


# --- one fact, one version

# Where magic numbers of files may stand beside store/format.py, and why.
FORMATS_ELSEWHERE: dict[str, str] = {}


def test_layouts_of_files_stand_in_one_place():
    for path in PYTHON:
        if short(path) != "store/format.py" and short(path) not in FORMATS_ELSEWHERE:
            found = re.findall(r"^(?:\w+_)?MAGIC = 0x", path.read_text(), re.MULTILINE)
            assert not found, f"{short(path)}: {found}"


def test_the_version_is_the_same_everywhere():
    version = brokerd.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == version
    assert f"Version {version}." in (ROOT / "README.md").read_text()
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == version
    assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text()
