"""An audit as people ask for it: its request, its judging by the processors of this machine, its report.

``brokerd.audit`` reads files and judges them, and knows nothing of people.  This package knows nothing of Spark, and of
the command line only what was asked (``request``).  ``brokerd.cli.ctl_audit`` is the command; it chooses between this
package's engine (``here``) and that of ``brokerd.spark``.
"""
