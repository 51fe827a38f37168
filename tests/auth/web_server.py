"""A web server that decides about logins, as people write one for rabbitmq_auth_backend_http."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl


class WebServer:
    """Listens on a free port of the loopback.  ``decide(path, fields)`` returns the answer: a text, or status and text.

    ``asked`` has each question, in order; ``gate`` keeps the answers back while it is not set.
    ``certificate``: files of a certificate and its key; the server speaks HTTPS then.
    """

    def __init__(self, decide, certificate=None):
        self.decide = decide
        self.asked = []
        self.methods = set()
        self.gate = threading.Event()
        self.gate.set()
        self.came = threading.Condition()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                self.answer(path, query)

            def do_POST(self):
                self.answer(self.path, self.rfile.read(int(self.headers["content-length"])).decode())

            def answer(self, path, form):
                fields = dict(parse_qsl(form, keep_blank_values=True))
                name = path.rpartition("/")[2]
                with owner.came:
                    owner.methods.add(self.command)
                    owner.asked.append((name, fields))
                    owner.came.notify_all()
                owner.gate.wait(60)
                said = owner.decide(name, fields)
                status, text = said if isinstance(said, tuple) else (200, said)
                self.send_response(status)
                self.end_headers()
                try:
                    self.wfile.write(text.encode())
                except OSError:
                    pass  # The broker waits no longer.

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            # In the thread of each client: one who breaks the handshake off must not end the server.
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False)
            self.scheme = "https"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def address(self):
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}"

    def paths(self):
        return {name: f"{self.address}/auth/{name}" for name in ("user", "vhost", "resource", "topic")}

    def flags(self):
        """The options of a broker that asks this server."""
        return [each for name, path in self.paths().items() for each in (f"--auth-http-{name}-path", path)]

    def count(self, path, /, **fields):
        """How often that was asked."""
        return sum(each == path and fields.items() <= asked.items() for each, asked in list(self.asked))

    def wait_for(self, path, /, **fields):
        """Wait until that was asked."""
        with self.came:
            assert self.came.wait_for(lambda: self.count(path, **fields), 60), self.asked

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
