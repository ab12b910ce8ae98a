"""The operator's voice towards its workers: an Ed25519 key pair that lives as long as this process.

No secret is stored anywhere. The public half goes into a ConfigMap that the workers mount; after a restart the new one
replaces it, and the kubelet brings it to the running pods. Commands are repeated until they are obeyed, so the moment
in between costs a delay and nothing else.
"""

from __future__ import annotations

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandem_worker.contract import COMMAND_ALGORITHM, SpeculationCommand


class Signer:
    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public_key_pem = (
            self._key.public_key()
            .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            .decode()
        )

    def sign(self, command: SpeculationCommand) -> str:
        """The bearer token of `POST /admin/speculation`."""
        return jwt.encode(command.model_dump(), self._key, algorithm=COMMAND_ALGORITHM)
