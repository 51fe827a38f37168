"""An issuer of tokens for tests: keys, a key set in a file, tokens that are right or wrong in one place."""

import json
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class Issuer:
    """Keys by their names, and the set of them in a file."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.file = folder / "jwks.json"
        self.keys = {}
        self.add("one", rsa.generate_private_key(65537, 2048), "RS256")

    def add(self, kid, key, algorithm):
        self.keys[kid] = (key, algorithm)
        self.write()

    def add_curve(self, kid):
        self.add(kid, ec.generate_private_key(ec.SECP256R1()), "ES256")

    def write(self, *more):
        rows = []
        for kid, (key, algorithm) in self.keys.items():
            kind = jwt.algorithms.ECAlgorithm if algorithm == "ES256" else jwt.algorithms.RSAAlgorithm
            rows.append({**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "alg": algorithm, "use": "sig"})
        self.file.write_text(json.dumps({"keys": [*rows, *more]}))

    def public_octets(self, kid="one"):
        """The public key as PEM: what an attacker has."""
        return self.keys[kid][0].public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def claims(self, *scopes, seconds=600, **more):
        """Right claims with these scopes; None for a claim leaves it out."""
        claims = {"sub": "ann", "aud": ["rabbitmq", "other"], "exp": int(time.time()) + seconds,
                  "scope": " ".join(f"rabbitmq.{scope}" for scope in scopes), **more}
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *scopes, kid="one", header=(), **more):
        key, algorithm = self.keys[kid]
        return jwt.encode(self.claims(*scopes, **more), key, algorithm, {"kid": kid, **dict(header)})
