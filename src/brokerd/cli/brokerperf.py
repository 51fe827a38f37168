"""brokerperf: put load on any AMQP 0-9-1 broker and see what it does and what it costs.

Exit codes: 0 done, 1 failed (one line says why), 2 wrong usage, 3 the order of messages was violated, 4 messages
stopped moving, 130 interrupted before there was anything to measure.  Of several scenarios the first that is not 0.
This module reads options and makes a `Plan` of them; `perfout` carries plans out and prints figures, and `perfrun` and
`perfchurn` make the runs.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from brokerd import __version__
from brokerd.cli import perfchurn, perfrun
from brokerd.cli.perfclient import Address
from brokerd.cli.perfout import Order, Plan, carry_out
from brokerd.cli.perfproc import listeners, unix_listeners
from brokerd.cli.perfwatch import Load
from brokerd.command_line import OneLineGroup, complete_files

ARGUMENTS = "brokerperf.arguments"      # where the context of a command keeps what it was given
LOCAL = ("localhost", "127.0.0.1", "::1")


class Uri(click.ParamType):
    """amqp://user:pass@host:port/vhost, or amqps://"""

    name = "uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Read the URI, or fail with its fault."""
        if isinstance(value, Address):
            return value
        try:
            return Address.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Ack(click.ParamType):
    """auto, each or multi:N, which stand for 0, 1 and N messages per ack."""

    name = "auto|each|multi:N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the mode."""
        if isinstance(value, int):
            return value
        if value in ("auto", "each"):
            return int(value == "each")
        kind, _, count = value.partition(":")
        if kind != "multi" or not count.isdecimal() or int(count) < 1:
            self.fail(f"{value!r} is not auto, each or multi:N", param, ctx)
        return int(count)


class Arguments(click.ParamType):
    """Arguments of queues or consumers as a JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        """Read the object."""
        if isinstance(value, dict):
            return value
        try:
            arguments = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(arguments, dict):
            self.fail("arguments are a JSON object", param, ctx)
        return arguments


def stacked(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Join several option decorators into one; --help shows the options in the given order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class RunCommand(click.Command):
    """A command that makes a `Plan` of its options; to invoke it is to carry the plan out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options, and keep the arguments for the report."""
        ctx.meta[ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def order(self, ctx: click.Context, name: str = "") -> Order:
        """The options of the context, under a name.  Raises click.UsageError."""
        plan: Plan = super().invoke(ctx)
        return Order(name, [ctx.info_name or "", *ctx.meta[ARGUMENTS]], plan)

    def invoke(self, ctx: click.Context) -> None:
        """Carry the plan out; exits with the code that fits."""
        carry_out([self.order(ctx)], **{name: ctx.params[name] for name in OUTPUT})


def planning(command: Callable[..., Plan]) -> Callable[..., Plan]:
    """Add the options of TLS to those of the URI, and keep those of the output away: the command gets one address."""

    @functools.wraps(command)
    def run(*, uri: Address, ca: str | None, verify: bool, **options: Any) -> Plan:
        if uri.tls is None and (ca or not verify):
            raise click.UsageError("--ca and --no-verify need a URI that begins with amqps://")
        if uri.tls is not None:
            uri = uri._replace(tls=uri.tls._replace(ca=ca or "", verify=verify))
        return command(uri=uri, **{name: value for name, value in options.items() if name not in OUTPUT})

    return run


OUTPUT = ("as_json", "quiet", "report")
output_options = stacked(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a summary."),
    click.option("--report", metavar="FILE", shell_complete=complete_files,
                 help="Write an HTML page with the figures, and plots of each second."),
    click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)

common = stacked(
    click.option(
        "--uri",
        type=Uri(),
        default="amqp://guest:guest@127.0.0.1:5672/",
        show_default=True,
        help="The broker: amqp://user:pass@host:port/vhost, or amqps:// for TLS.  A host such as"
             " %2Frun%2Fbrokerd%2Famqp.sock is the path of a unix socket.",
    ),
    click.option("--ca", metavar="FILE", shell_complete=complete_files,
                 help="CAs that the broker's certificate must be signed by (PEM), instead of the system's."),
    click.option("--verify/--no-verify", default=True, show_default=True,
                 help="Check the broker's certificate and the name in it."),
    click.option(
        "--pid",
        "pids",
        type=click.IntRange(1),
        multiple=True,
        help="Process to measure; may be repeated. Found from the port if the broker is on this host.",
    ),
    output_options,
    planning,
)

flow_options = stacked(
    click.option(
        "-s",
        "--size",
        type=click.IntRange(0, 1 << 27),
        default=16,
        show_default=True,
        help="Octets in a message's body.",
    ),
    click.option("--durable", is_flag=True, help="Declare durable queues."),
    click.option("-p", "--persistent", is_flag=True, help="Publish with delivery-mode 2."),
    click.option(
        "--queue-args", type=Arguments(), default="{}", help='Arguments of the queues, as in {"x-max-length": 9}.'
    ),
)

queue_options = stacked(
    click.option(
        "-u",
        "--queue",
        default="brokerperf",
        show_default=True,
        help="Name of the queue; with --queues the first part of their names.",
    ),
    click.option("--queues", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many queues."),
    click.option(
        "--consumer-args",
        type=Arguments(),
        default="{}",
        help='Arguments of the consumers, as in {"x-stream-offset": "first"}.',
    ),
    click.option("--ack", type=Ack(), default="auto", show_default=True, help="How consumers acknowledge."),
    click.option(
        "-P",
        "--prefetch",
        type=click.IntRange(0, 65535),
        default=0,
        help="Unacknowledged messages a consumer may have; 0: no limit.",
    ),
    click.option("--verify-order", is_flag=True, help="Check that queues deliver each message once, in order."),
    click.option("--keep", is_flag=True, help="Use existing queues as they are, and do not delete them."),
    click.option(
        "--stall",
        type=click.FloatRange(min=0.1),
        default=30,
        show_default=True,
        help="Give up when no message has moved for so many seconds.",
    ),
)


@click.group(cls=OneLineGroup, help=__doc__.partition("\n")[0],
             context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-v", "--version", prog_name="brokerperf", message="%(prog)s %(version)s")
def main() -> None:
    """Put load on any AMQP 0-9-1 broker."""


@main.command(cls=RunCommand)
@click.option(
    "-x", "--producers", type=click.IntRange(0, 1000), default=1, show_default=True, help="Publishing connections."
)
@click.option(
    "-y", "--consumers", type=click.IntRange(0, 1000), default=1, show_default=True, help="Consuming connections."
)
@click.option("-z", "--seconds", type=click.FloatRange(min=0), default=0, help="Seconds to publish.  [default: 10]")
@click.option("-n", "--count", type=click.IntRange(0), default=0, help="Publish so many messages per producer.")
@click.option(
    "-c",
    "--confirm",
    type=click.IntRange(0, 1 << 20),
    default=0,
    metavar="WINDOW",
    help="Publish with confirms, and wait when so many are outstanding; 0: without confirms.",
)
@click.option(
    "-r", "--rate", type=click.FloatRange(min=0), default=0, help="Messages a second, of all producers together."
)
@click.option("-e", "--exchange", default="", help="Publish to this exchange instead of the default one.")
@click.option("--exchange-type", default="", help="Declare the exchange with this type, and delete it afterwards.")
@click.option(
    "-k",
    "--routing-key",
    "routing_keys",
    multiple=True,
    help="Routing key; several take turns. {} stands for 0 to --keys less one.  [default: the queue's name]",
)
@click.option(
    "-b",
    "--binding-key",
    "binding_keys",
    multiple=True,
    help="Bind each queue with this key; may be repeated, {} as above.  [default: the queue's name]",
)
@click.option("--keys", type=click.IntRange(1, 100_000), default=1, help="How many numbers {} takes.")
@click.option(
    "--copies", type=click.IntRange(1), default=1, show_default=True, help="Queues that each message goes to."
)
@flow_options
@queue_options
@common
def throughput(
    seconds: float, count: int, uri: Address, pids: tuple[int, ...], **options: Any
) -> Plan:
    """Publish and consume as fast as it goes, or at a rate."""
    if not options["producers"] and not options["consumers"]:
        raise click.UsageError("neither producers nor consumers")
    if not options["producers"] and count:
        raise click.UsageError("-n counts what is published; use drain to consume a number of messages")
    if options["exchange_type"] and not options["exchange"]:
        raise click.UsageError("--exchange-type needs --exchange")
    check(options)
    # A run that only consumes takes the messages that are already in the queues.
    options["keep"] |= not options["producers"]
    load = Load(
        address=uri, seconds=seconds or (0 if count else 10), count=count, pids=processes(uri, pids), **options
    )
    return Plan("throughput", lambda say: perfrun.flow(load, say))


@main.command(cls=RunCommand)
@click.option(
    "-r", "--rate", type=click.FloatRange(min=0.1), default=5000, show_default=True, help="Messages a second."
)
@click.option(
    "-z", "--seconds", type=click.FloatRange(min=0.1), default=10, show_default=True, help="Seconds to publish."
)
@click.option(
    "--warmup", type=click.FloatRange(min=0), default=1, show_default=True, help="Seconds not counted at the start."
)
@click.option(
    "-c", "--confirm", type=click.IntRange(0, 1 << 20), default=0, metavar="WINDOW", help="Publish with confirms."
)
@flow_options
@queue_options
@common
def latency(uri: Address, pids: tuple[int, ...], **options: Any) -> Plan:
    """Time messages end to end, from when each was due at the rate asked for."""
    return timed("latency", uri, pids, options)


@main.command(cls=RunCommand)
@click.option(
    "-x", "--producers", type=click.IntRange(1, 1000), default=1, show_default=True, help="Publishing connections."
)
@click.option(
    "-y", "--consumers", type=click.IntRange(0, 1000), default=1, show_default=True, help="Consuming connections."
)
@click.option(
    "-r", "--rate", type=click.FloatRange(min=0), default=0,
    help="Messages a second, of all producers together.  [default: as fast as the window lets them]",
)
@click.option(
    "-z", "--seconds", type=click.FloatRange(min=0.1), default=10, show_default=True, help="Seconds to publish."
)
@click.option(
    "--warmup", type=click.FloatRange(min=0), default=0, show_default=True, help="Seconds not counted at the start."
)
@click.option(
    "-c", "--window", "confirm", type=click.IntRange(1, 1 << 20), default=1, show_default=True, metavar="WINDOW",
    help="Unconfirmed messages that each producer may have.",
)
@flow_options
@queue_options
@common
def confirm(uri: Address, pids: tuple[int, ...], **options: Any) -> Plan:
    """Time confirms: how long after each message was written its confirm came."""
    return timed("confirm", uri, pids, options)


@main.command(cls=RunCommand)
@click.option(
    "-w", "--what", "kind", type=click.Choice(list(perfchurn.KINDS)), default="connection", show_default=True,
    help="What to do. " + " ".join(f"{name}: {kind.told}." for name, kind in perfchurn.KINDS.items()),
)
@click.option("-x", "--workers", type=click.IntRange(1, 1000), default=4, show_default=True, help="How many at a time.")
@click.option("-z", "--seconds", type=click.FloatRange(min=0), default=0, help="How long.  [default: 10]")
@click.option("-n", "--count", type=click.IntRange(0), default=0, help="Rounds to do, of all workers together.")
@click.option("-r", "--rate", type=click.FloatRange(min=0), default=0, help="Rounds a second, of all workers together.")
@click.option("--messages", type=click.IntRange(0, 10_000), default=1, show_default=True, help="Of each session.")
@click.option("--durable", is_flag=True, help="Declare durable queues.")
@common
def churn(uri: Address, pids: tuple[int, ...], seconds: float, count: int, **options: Any) -> Plan:
    """Open and close, declare and delete, over and over; time each round."""
    load = perfchurn.Churn(
        address=uri, pids=processes(uri, pids), seconds=seconds or (0 if count else 10), count=count, **options)
    return Plan("churn", lambda say: perfchurn.churn(load, say))


@main.command(cls=RunCommand)
@click.option(
    "-y", "--consumers", type=click.IntRange(1, 1000), default=1, show_default=True, help="Consuming connections."
)
@click.option("-n", "--count", type=click.IntRange(0), default=0, help="Consume so many messages.  [default: all]")
@queue_options
@common
def drain(uri: Address, pids: tuple[int, ...], **options: Any) -> Plan:
    """Consume what is in the queues, then delete those that are empty unless --keep.

    With -n or --keep consumers acknowledge, and all other messages stay.
    """
    check(options)
    load = Load(address=uri, producers=0, pids=processes(uri, pids), **options)
    return Plan("drain", lambda say: perfrun.drain(load, say))


@main.command(cls=RunCommand)
@click.option("-n", "--count", type=click.IntRange(1, 60_000), default=1000, show_default=True, help="How many.")
@click.option(
    "--hold", type=click.FloatRange(min=0), default=3, show_default=True, help="Seconds to wait before measuring."
)
@click.option("--openers", type=click.IntRange(1, 64), default=4, show_default=True, help="Threads that open them.")
@common
def connections(
    count: int, hold: float, openers: int, uri: Address, pids: tuple[int, ...]
) -> Plan:
    """Open idle connections, each with a channel and a consumer; the broker's memory for each."""
    found = processes(uri, pids)
    return Plan("connections", lambda say: perfrun.connections(uri, count, hold, openers, found, say))


@main.command(cls=RunCommand)
@click.option("-n", "--count", type=click.IntRange(1), default=10_000, show_default=True, help="How many.")
@click.option("--durable/--transient", default=True, show_default=True, help="Kind of queue.")
@click.option("--bind/--no-bind", default=True, show_default=True, help="Bind each to amq.direct.")
@click.option("--queue-args", type=Arguments(), default="{}", help="Arguments of the queues, a JSON object.")
@click.option(
    "--window", type=click.IntRange(1, 10_000), default=1, show_default=True,
    help="Queues that are declared before the first answer is awaited.",
)
@click.option("--keep", is_flag=True, help="Do not delete them at the end.")
@common
def queues(
    count: int,
    durable: bool,
    bind: bool,
    queue_args: dict[str, object],
    window: int,
    keep: bool,
    uri: Address,
    pids: tuple[int, ...],
) -> Plan:
    """Declare and bind queues; how many a second, the broker's memory for each."""
    found = processes(uri, pids)
    return Plan("queues", lambda say: perfrun.queues(uri, count, durable, queue_args, bind, window, keep, found, say))


@main.command(name="run")
@click.argument("file", shell_complete=complete_files)
@click.option("--only", multiple=True, metavar="NAME", help="Run this scenario; may be repeated.  [default: all]")
@click.option("--uri", help="The broker, instead of what the file says.")
@output_options
@click.pass_context
def scenarios(ctx: click.Context, /, file: str, only: tuple[str, ...], uri: str | None, **output: Any) -> None:
    """Run the scenarios of a TOML file, one after the other.

    All are checked before the first begins. With --json each prints one line when it is done.
    """
    from brokerd.cli import perfscenarios

    commands = {name: command for name, command in main.commands.items() if isinstance(command, RunCommand)}
    try:
        found = perfscenarios.read(file, commands)
    except perfscenarios.ScenarioError as error:
        raise click.UsageError(str(error)) from None
    for name in only:
        if all(scenario.name != name for scenario in found):
            raise click.UsageError(f"{file} has no scenario {name!r}")
    orders = []
    for scenario in found:
        if only and scenario.name not in only:
            continue
        arguments = [*scenario.arguments, *(["--uri", uri] if uri else [])]
        command = commands[scenario.run]
        try:
            orders.append(command.order(command.make_context(scenario.run, arguments, parent=ctx), scenario.name))
        except click.UsageError as error:
            raise click.UsageError(f"{file}: scenario {scenario.name!r}: {error.format_message()}", ctx) from None
    carry_out(orders, **output)


def timed(name: str, uri: Address, pids: tuple[int, ...], options: dict[str, Any]) -> Plan:
    """A flow in which times are measured."""
    if options["size"] < 16:
        raise click.UsageError(f"{name} needs messages of 16 octets or more")
    if options["warmup"] >= options["seconds"]:
        raise click.UsageError("the warm-up is as long as the run")
    check(options)
    load = Load(address=uri, measure=True, pids=processes(uri, pids), **options)
    return Plan(name, lambda say: perfrun.flow(load, say))


def check(options: dict[str, Any]) -> None:
    """UsageError where options contradict each other."""
    if 0 < options["prefetch"] < options["ack"]:
        raise click.UsageError("a prefetch below the messages of one ack would stall")
    if options["verify_order"] and options.get("size", 8) < 8:
        raise click.UsageError("--verify-order needs messages of 8 octets or more")
    if options["verify_order"] and not options.get("consumers", 1):
        raise click.UsageError("--verify-order needs consumers")


def processes(address: Address, pids: tuple[int, ...]) -> tuple[int, ...]:
    """The processes to measure: those that --pid names, else those of this host that listen on the broker's port.

    Behind a unix socket that is the process that listens there.
    """
    if not pids and address.host.startswith("/"):
        return tuple(unix_listeners(address.host))
    if pids or address.host not in LOCAL:
        return pids
    return tuple(listeners(address.port))


if __name__ == "__main__":
    main()
