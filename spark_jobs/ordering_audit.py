"""Checks from a data directory, a dump or an archive of brokerd whether messages kept their order.

    python spark_jobs/ordering_audit.py /var/lib/brokerd --report out
    spark-submit --master spark://host:7077 spark_jobs/ordering_audit.py --segments s3://bucket/archive --report out

Exit status 0: all held, 1: violated, 2: bad usage or input, 3: undecidable.  ``--help`` lists the options.
"""

import sys

from brokerd.spark.audit import main

if __name__ == "__main__":
    sys.exit(main())
