"""The program ``brokerd``, also ``python -m brokerd``.

The broker starts ``brokerd management`` and ``brokerd links`` beside itself.
"""

import gc
import sys


def main() -> None:
    """Run the command.  Garbage is not looked for before the broker listens: at start everything stays."""
    gc.disable()
    if sys.argv[1:] == ["management"]:
        from brokerd.management.main import main as management

        sys.exit(management())
    if sys.argv[1:] == ["links"]:
        from brokerd.carriers.main import main as links

        sys.exit(links())
    from brokerd.cli.brokerd import command

    command().main(prog_name="brokerd")


if __name__ == "__main__":
    main()
