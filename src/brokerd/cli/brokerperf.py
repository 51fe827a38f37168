"""brokerperf: put load on any AMQP 0-9-1 broker and see what it does and what it costs.

Exit codes: 0 done, 1 failed (one line says why), 2 wrong usage, 3 the order of messages was violated, 4 messages
stopped moving, 130 interrupted before there was anything to measure.
This module reads options and prints figures; `perfrun` makes the runs.
"""

import functools
import json
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from brokerd import __version__
from brokerd.cli import perfrun
from brokerd.cli.ctl_output import Progress
from brokerd.cli.perfclient import Address, PerfError
from brokerd.cli.perfproc import listeners, unix_listeners
from brokerd.command_line import OneLineGroup, complete_files

FAILED, ORDER_VIOLATED, STALLED, INTERRUPTED = 1, 3, 4, 130
BAR = 24        # characters
LOCAL = ("localhost", "127.0.0.1", "::1")


class Uri(click.ParamType):
    """amqp://user:pass@host:port/vhost, or amqps://"""

    name = "uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Read the URI, or fail with what is wrong with it."""
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


def over_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of TLS to those of the URI.  The command gets one address."""

    @functools.wraps(command)
    def run(*, uri: Address, ca: str | None, verify: bool, **options: Any) -> None:
        if uri.tls is None and (ca or not verify):
            raise click.UsageError("--ca and --no-verify need a URI that begins with amqps://")
        if uri.tls is not None:
            uri = uri._replace(tls=uri.tls._replace(ca=ca or "", verify=verify))
        command(uri=uri, **options)

    return run


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
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a summary."),
    click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
    over_tls,
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


@main.command()
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
    seconds: float, count: int, uri: Address, pids: tuple[int, ...], as_json: bool, quiet: bool, **options: Any
) -> None:
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
    load = perfrun.Load(
        address=uri, seconds=seconds or (0 if count else 10), count=count, pids=processes(uri, pids), **options
    )
    report(lambda say: perfrun.flow(load, say), "throughput", as_json, quiet)


@main.command()
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
def latency(uri: Address, pids: tuple[int, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Time messages end to end, from when each was due at the rate asked for."""
    if options["size"] < 16:
        raise click.UsageError("latency needs messages of 16 octets or more")
    if options["warmup"] >= options["seconds"]:
        raise click.UsageError("the warm-up is as long as the run")
    check(options)
    load = perfrun.Load(address=uri, measure=True, pids=processes(uri, pids), **options)
    report(lambda say: perfrun.flow(load, say), "latency", as_json, quiet)


@main.command()
@click.option(
    "-y", "--consumers", type=click.IntRange(1, 1000), default=1, show_default=True, help="Consuming connections."
)
@click.option("-n", "--count", type=click.IntRange(0), default=0, help="Consume so many messages.  [default: all]")
@queue_options
@common
def drain(uri: Address, pids: tuple[int, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Consume what is in the queues, then delete those that are empty unless --keep.

    With -n or --keep consumers acknowledge, and all other messages stay.
    """
    check(options)
    load = perfrun.Load(address=uri, producers=0, pids=processes(uri, pids), **options)
    report(lambda say: perfrun.drain(load, say), "drain", as_json, quiet)


@main.command()
@click.option("-n", "--count", type=click.IntRange(1, 60_000), default=1000, show_default=True, help="How many.")
@click.option(
    "--hold", type=click.FloatRange(min=0), default=3, show_default=True, help="Seconds to wait before measuring."
)
@click.option("--openers", type=click.IntRange(1, 64), default=4, show_default=True, help="Threads that open them.")
@common
def connections(
    count: int, hold: float, openers: int, uri: Address, pids: tuple[int, ...], as_json: bool, quiet: bool
) -> None:
    """Open idle connections, each with a channel and a consumer; the broker's memory for each."""
    found = processes(uri, pids)
    report(lambda say: perfrun.connections(uri, count, hold, openers, found, say), "connections", as_json, quiet)


@main.command()
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
    as_json: bool,
    quiet: bool,
) -> None:
    """Declare and bind queues; how many a second, the broker's memory for each."""
    found = processes(uri, pids)
    report(
        lambda say: perfrun.queues(uri, count, durable, queue_args, bind, window, keep, found, say),
        "queues", as_json, quiet,
    )


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


def report(run: Callable[[perfrun.Say], perfrun.Figures], name: str, as_json: bool, quiet: bool) -> None:
    """Run ``run``, print its figures, and exit with the code that fits them."""

    # A stop by systemd or a container ends a run as politely as Ctrl-C does.
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Teller(quiet) as teller:
            figures: perfrun.Figures = {"command": name} | run(teller)
    except (PerfError, ValueError, OSError) as error:
        click.echo(f"brokerperf: {error}", err=True)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        click.echo("brokerperf: interrupted", err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, former)
    if as_json:
        click.echo(json.dumps(figures))
    else:
        for line in summary(figures):
            click.echo(line)
    if figures.get("stalled"):
        click.echo("brokerperf: nothing moved any more", err=True)
        sys.exit(STALLED)
    if any(figures["order"].values() if "order" in figures else ()):
        click.echo("brokerperf: the order of messages was violated", err=True)
        sys.exit(ORDER_VIOLATED)


class Teller:
    """Progress as a bar on a terminal, with what is said once as lines; with ``quiet`` nothing."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._bar = quiet, Progress()

    def __enter__(self) -> "Teller":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.at("")

    def line(self, text: str) -> None:
        """Say something once."""
        if not self._quiet:
            self._bar.at("")
            click.echo(f"brokerperf: {text}", err=True)

    def at(self, share: float | None, text: str) -> None:
        """Draw the bar anew; without a share it has none."""
        if not self._quiet:
            filled = round(BAR * share) if share is not None else 0
            done = f"[{'#' * filled:{BAR}}] {share:4.0%}  " if share is not None else ""
            self._bar.at(f"{done}{text}"[:shutil.get_terminal_size().columns - 1])


def summary(figures: perfrun.Figures) -> list[str]:
    """The figures as lines of text; a group of figures shares one line."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            value = "  ".join(f"{key} {number:,}" for key, number in value.items())
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, int | float):
            value = f"{value:,}"
        lines.append(f"{name.replace('_', ' '):24}{value}")
    return lines


if __name__ == "__main__":
    main()
