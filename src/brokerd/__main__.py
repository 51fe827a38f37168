"""The program ``brokerd``, also ``python -m brokerd``.

The broker starts ``brokerd management``, ``brokerd links`` and ``brokerd spans`` beside itself.
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
    if sys.argv[1:] == ["spans"]:
        from brokerd.spans.main import main as spans

        sys.exit(spans())
    from brokerd.cli.brokerd import command

    command().main(prog_name="brokerd")


if __name__ == "__main__":
    main()
