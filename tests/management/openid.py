"""An OpenID provider for tests: discovery, a page that asks nobody, codes with PKCE, tokens of tests.auth.tokens."""

import hashlib
import json
import threading
from base64 import urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit


class Provider:
    """Listens on a free port of the loopback.  ``scopes``: of the next token.  ``asks``: users press a button.

    ``codes`` are those that were given out and not exchanged; ``asked`` has each path, in order.
    """

    def __init__(self, issuer):
        self.issuer = issuer
        self.scopes = ["tag:administrator", "read:*/*", "write:*/*", "configure:*/*"]
        self.asks = False
        self.described = {}  # fields in place of those of the discovery document
        self.codes, self.asked = {}, []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                place = urlsplit(self.path)
                provider.asked.append(place.path)
                if place.path == "/.well-known/openid-configuration":
                    self.say(200, json.dumps(provider.document()))
                elif place.path == "/keys":
                    self.say(200, issuer.file.read_text())
                elif place.path == "/authorize":
                    self.authorize({name: values[0] for name, values in parse_qs(place.query).items()})
                else:
                    self.say(404, "")

            def authorize(self, query):
                assert query["response_type"] == "code"
                assert query["code_challenge_method"] == "S256"
                assert query["client_id"] == "pages"
                code = f"code-{len(provider.asked)}"
                provider.codes[code] = query
                back = f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
                if provider.asks:
                    back = back.replace("&", "&amp;")
                    self.say(200, f"<title>Provider</title><a href='{back}'>Let me in</a>", "text/html")
                else:
                    self.say(302, "", location=back)

            def do_POST(self):
                provider.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                query = provider.codes.pop(form["code"][0], None)
                secret = form["code_verifier"][0].encode()
                proof = urlsafe_b64encode(hashlib.sha256(secret).digest()).rstrip(b"=").decode()
                if query is None or (proof, form["redirect_uri"][0]) != (query["code_challenge"],
                                                                         query["redirect_uri"]):
                    self.say(400, '{"error": "invalid_grant"}')
                else:
                    self.say(200, json.dumps({"token_type": "Bearer", "access_token": provider.token()}))

            def say(self, status, text, kind="application/json", location=""):
                self.send_response(status)
                self.send_header("content-type", kind)
                if location:
                    self.send_header("location", location)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def document(self):
        return {"issuer": self.address, "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token", "jwks_uri": f"{self.address}/keys", **self.described}

    def token(self):
        return self.issuer.token(*self.scopes, iss=self.address, sub="olga")

    def flags(self):
        """The options of a broker whose pages log in here."""
        return ["--oauth2-issuer", self.address, "--oauth2-jwks", f"{self.address}/keys", "--oauth2-client-id", "pages"]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
