"""One client: its connection, handshake and channels.  Octets in, octets out; no socket, no await."""
