"""Usage errors of every program: one line that names the program and what is wrong, status 2, no traceback."""

import re

import click
import pytest
from click.testing import CliRunner

from brokerd.cli.brokerctl import run as brokerctl
from brokerd.cli.brokerd import command as brokerd
from brokerd.cli.brokerperf import main as brokerperf
from brokerd.command_line import OneLineCommand, OneLineGroup


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
    pytest.importorskip("pyspark")
    from brokerd.spark.audit import main

    for program, ran in (("ordering_audit", main), ("brokerctl audit", lambda given: brokerctl(["audit", *given]))):
        assert ran(arguments) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1), told
        assert told.err.startswith(f"{program}: ")
        assert told.err.endswith(f" (see {program} --help)\n")
