"""The program ``brokerd``, also ``python -m brokerd``."""

import gc


def main() -> None:
    """Run the command.  Garbage is not looked for before the broker listens: at start everything stays."""
    gc.disable()
    from brokerd.cli.brokerd import command

    command().main(prog_name="brokerd")


if __name__ == "__main__":
    main()
