"""Starts brokerd with TLS on the socket itself, as where the kernel can encrypt, though this machine's may not:

    python socket_tls.py PYTHON -m brokerd FLAG...

Where it cannot, OpenSSL keeps the keys of both directions.
"""

import sys

from brokerd.__main__ import main
from brokerd.server import kernel_tls

if __name__ == "__main__":
    kernel_tls.is_available = lambda: True
    sys.argv = ["brokerd", *sys.argv[4:]]
    main()
