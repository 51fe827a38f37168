"""``python -m brokerd``."""

from brokerd.cli.brokerd import main

if __name__ == "__main__":
    main()
