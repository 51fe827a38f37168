"""What every fuzzer takes on its command line, and how it tells of its progress."""

import argparse
import sys

SECONDS = 60    # of a run, if nothing else bounds it


def parser_of(doc, unit):
    """A parser with --seed, --first, --seconds and how many of ``unit`` ("inputs" or "blocks") to run."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(f"--{unit}", type=int)
    parser.add_argument("--seconds", type=float)
    parser.set_defaults(tell=tell)
    return parser


def options_of(parser, unit):
    """The options as ``fuzz()`` takes them."""
    options = vars(parser.parse_args())
    if options[unit] is None and options["seconds"] is None:
        options["seconds"] = SECONDS
    return options


def tell(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
