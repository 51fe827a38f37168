"""The edges: the process, its sockets, signals and logs."""
