"""Commands of the operator: signed with Ed25519, short-lived, for this pod alone. No secret is shared.

The worker holds the public key only, and reads it at every command, so a new key needs no restart.
"""

from __future__ import annotations

import time
from pathlib import Path

import jwt
from pydantic import ValidationError

from tandem_worker.contract import COMMAND_ALGORITHM, COMMAND_VALID_SECONDS, SpeculationCommand

CLOCK_SKEW_SECONDS = 5


class Refused(Exception):
    """`status` 401: who sent this is not known. 403: it is, but this is not allowed. 409: it can't be done."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Gate:
    """Lets commands through that are genuine, fresh, meant for this pod and not older than the last one."""

    def __init__(self, key_file: Path | None, pod_uid: str | None) -> None:
        self._key_file, self._pod_uid = key_file, pod_uid
        self._last_issued_at, self._last_admitted_seconds = 0.0, 0.0

    def admit(self, authorization: str | None) -> SpeculationCommand:
        """`authorization` is the header's value. Raises Refused."""
        key = self._read_key()
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refused(401, "A command needs the header `Authorization: Bearer <token>`.")
        command = self._decode(token.strip(), key)
        if command.aud != self._pod_uid:
            raise Refused(403, f"The command is for pod {command.aud}, this is {self._pod_uid}.")
        valid_seconds = command.exp - command.iat
        if valid_seconds > COMMAND_VALID_SECONDS:
            raise Refused(403, f"The command is valid for {valid_seconds:g} s, at most {COMMAND_VALID_SECONDS} s.")
        if command.iat < self._last_issued_at and self._may_come_again():
            raise Refused(403, "A later command was carried out already; this one is a replay or came out of order.")
        self._last_issued_at, self._last_admitted_seconds = command.iat, time.monotonic()
        return command

    def _may_come_again(self) -> bool:
        """What was sent before the last command may still be valid. Later it has expired, and an earlier time of issue
        means that the clocks were set back: no command would be heard until they have caught up."""
        return time.monotonic() - self._last_admitted_seconds <= COMMAND_VALID_SECONDS + CLOCK_SKEW_SECONDS

    def _read_key(self) -> bytes:
        if self._key_file is None or self._pod_uid is None:
            raise Refused(403, "Commands are off: the worker was started without --operator-key-file or --pod-uid.")
        try:
            return self._key_file.read_bytes()
        except OSError as failure:
            raise Refused(403, f"The operator's key {self._key_file} can not be read: {failure.strerror}.") from None

    def _decode(self, token: str, key: bytes) -> SpeculationCommand:
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[COMMAND_ALGORITHM],
                leeway=CLOCK_SKEW_SECONDS,
                options={"require": ["aud", "iat", "exp"], "verify_aud": False},  # compared by `admit`, with its reason
            )
            return SpeculationCommand.model_validate(claims)
        except jwt.ExpiredSignatureError:
            raise Refused(401, f"The command has expired; the worker's clock says {time.time():.0f}.") from None
        except ValidationError as failure:
            fields = ", ".join(".".join(str(part) for part in problem["loc"]) for problem in failure.errors())
            raise Refused(403, f"The command is not understood: {fields}.") from None
        except jwt.InvalidKeyError:
            raise Refused(403, f"The operator's key {self._key_file} is not an Ed25519 public key (PEM).") from None
        except (jwt.PyJWTError, ValueError, TypeError) as failure:
            raise Refused(401, f"The command is not signed by the operator: {failure}.") from None
