"""How many files this process may have open: as many as the system allows."""

import resource
from logging import getLogger

log = getLogger("brokerd")

FEW = 1025  # Fewer do not last for a thousand connections.


def raise_limit() -> int:
    """Raise this process's limit to the hard one, and warn if that is low.  Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # The system's own limit, fs.nr_open, may be lower by now.
            log.warning("the limit of %d open files cannot be raised to %d: %s", soft, hard, error)
            return soft
    if hard < FEW:
        log.warning("this process may have %d files open; each connection takes one, and each queue in use: raise the "
                    "hard limit (ulimit -Hn, LimitNOFILE)", hard)
    return hard
