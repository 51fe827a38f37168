"""The program ``brokerd``, also ``python -m brokerd``.  The broker starts ``brokerd management`` beside itself."""

import gc
import sys


def main() -> None:
    """Run the command.  Garbage is not looked for before the broker listens: at start everything stays."""
    gc.disable()
    if sys.argv[1:] == ["management"]:
        from brokerd.management.main import main as management

        sys.exit(management())
    from brokerd.cli.brokerd import command

    command().main(prog_name="brokerd")


if __name__ == "__main__":
    main()
