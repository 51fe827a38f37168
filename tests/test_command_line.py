"""Usage errors of every program: one line that names the program and what is wrong, status 2, no traceback."""

import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from tests.broker import SECONDS, environment

from brokerd.cli.brokerctl import run as brokerctl
from brokerd.cli.brokerd import command as brokerd
from brokerd.cli.brokerperf import main as brokerperf
from brokerd.command_line import OneLineCommand, OneLineGroup
from brokerd.config import OPTIONS


@click.group("outer", cls=OneLineGroup)
def outer():
    pass


@outer.command()
@click.option("--count", type=int)
@click.argument("path")
def inner(count, path):
    raise click.UsageError(f"{path} is\n  nothing.")


def ending(command, *arguments):
    result = CliRunner().invoke(command, arguments, prog_name=command.name)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(("arguments", "told"), [
    (["--none"], r"No such option.* \(see outer --help\)"),
    (["nothing"], r"No such command 'nothing' \(see outer --help\)"),
    (["inner"], r"Missing argument 'PATH' \(see outer inner --help\)"),
    (["inner", "there", "--count", "x"], r"Invalid value for '--count': .* \(see outer inner --help\)"),
    (["inner", "there"], r"there is nothing \(see outer inner --help\)"),
])
def test_a_usage_error_is_one_line_with_status_2(arguments, told):
    status, out, err = ending(outer, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.fullmatch(f"outer: {told}\n", err), err


def test_a_group_without_a_command_shows_its_help():
    status, out, err = ending(outer)
    assert status in (0, 2)             # 0 by an older click
    assert "Usage: outer" in out + err


def test_a_command_that_can_be_used_is_run_and_shows_its_help():
    @click.command("plain", cls=OneLineCommand)
    def plain():
        click.echo("done")

    assert ending(plain) == (0, "done\n", "")
    assert ending(plain, "--help")[1].startswith("Usage: plain")


@pytest.mark.parametrize("arguments", [["--nosuch"], ["--amqp-port", "many"], ["more"], ["--amqp-port"]])
def test_brokerd_refuses_in_one_line(arguments):
    status, out, err = ending(brokerd(), *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("brokerd: ")
    assert err.endswith("(see brokerd --help)\n")


@pytest.mark.parametrize("arguments", [["--nosuch"], ["throughput", "--nosuch"], ["throughput", "-s", "x"],
                                       ["throughput", "-x", "0", "-y", "0"]])
def test_brokerperf_refuses_in_one_line(arguments):
    status, out, err = ending(brokerperf, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{brokerperf.name}: ")


@pytest.mark.parametrize("arguments", [["--nosuch"], [], ["there", "and", "there"], ["there", "--engine", "c"],
                                       ["there", "--fail-on"], ["there", "--audits", "none"], ["there", "--once"]])
def test_the_audit_refuses_in_one_line(capsys, arguments):
    from brokerd.cli.ctl_audit import main

    for program, ran in (("ordering_audit", main), ("brokerctl audit", lambda given: brokerctl(["audit", *given]))):
        assert ran(arguments) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1), told
        assert told.err.startswith(f"{program}: ")
        assert told.err.endswith(f" (see {program} --help)\n")


# --- completion by shells

def completed(name, words):
    """What the program tells bash to complete, as (kind, text)."""
    module = "brokerd.__main__" if name == "brokerd" else f"brokerd.cli.{name}"
    words = [name, *words]
    asked = {f"_{name.upper()}_COMPLETE": "bash_complete", "COMP_WORDS": shlex.join(words),
             "COMP_CWORD": str(len(words) - 1)}
    # The program's name is that of the file, as a shell would start it.
    code = f"import sys; sys.argv[0] = {name!r}; from {module} import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(asked), capture_output=True, text=True,
                          timeout=SECONDS)
    assert done.stderr == ""
    return [tuple(line.split(",", 1)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("name", "words", "wanted"), [
    ("brokerd", ["--amqp-"], [("plain", "--amqp-port")]),
    ("brokerd", ["--log-level", "w"], [("plain", "warning")]),
    ("brokerd", ["-D", "./d"], [("dir", "./d")]),
    ("brokerd", ["--cert", "c"], [("file", "c")]),
    ("brokerd", ["-c", "c"], [("file", "c")]),
    ("brokerctl", ["que"], [("plain", "queue")]),
    ("brokerctl", ["queue", "du"], [("plain", "dump")]),
    ("brokerctl", ["-D", "d"], [("dir", "d")]),
    ("brokerctl", ["inspect", "d"], [("dir", "d")]),
    ("brokerctl", ["queue", "dump", "o"], [("file", "o")]),
    ("brokerctl", ["audit", "--fail"], [("plain", "--fail-on")]),
    ("brokerctl", ["audit", "--engine", "b"], [("plain", "b"), ("plain", "both")]),
    ("brokerctl", ["audit", "d"], [("dir", "d")]),
    ("brokerctl", ["audit", "dump", "--rep"], [("plain", "--report")]),
    ("brokerperf", ["dr"], [("plain", "drain")]),
    ("brokerperf", ["drain", "--cou"], [("plain", "--count")]),
    ("brokerperf", ["throughput", "--ca", "c"], [("file", "c")]),
])
def test_a_shell_is_told_what_to_complete(name, words, wanted):
    assert completed(name, words) == wanted


def test_every_option_that_names_a_path_says_so():
    for row in OPTIONS.values():
        named = row.type is str and re.search(r"_(file|dir|cert|path|archive|key|chain_log|definitions)$", row.name)
        named = named and "://" not in row.default      # A URL's path is none of this machine.
        assert bool(row.option.path) == bool(named), row.name
