"""Checks from a data directory, a dump or an archive of brokerd whether messages kept their order.

    python spark_jobs/ordering_audit.py /var/lib/brokerd --report out
    python spark_jobs/ordering_audit.py --master spark://host:7077 --segments s3://bucket/archive --report out

Exit status 0: the broker kept every promise, 1: violated, 2: bad usage or input, 3: undecidable.
``--help`` lists the options.
"""

import sys

from brokerd.cli.ctl_audit import main

if __name__ == "__main__":
    sys.exit(main())
