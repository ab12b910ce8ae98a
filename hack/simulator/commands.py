"""Verifies the operator's signed command as the contract says."""

from pathlib import Path

import jwt
from pydantic import ValidationError

from tandem_worker.contract import COMMAND_ALGORITHM, COMMAND_VALID_SECONDS, SpeculationCommand

CLOCK_SKEW_SECONDS = 5


class Refused(Exception):
    """`status` 401: not known who sent it; 403: known, and not allowed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def admit(authorization: str | None, key_file: Path | None, pod_uid: str | None) -> SpeculationCommand:
    """`authorization` is the header's value. The key is read each time, so that it can change. Raises Refused."""
    if key_file is None or pod_uid is None:
        raise Refused(403, "Commands are off: started without --operator-key-file or --pod-uid.")
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refused(401, "A command needs the header `Authorization: Bearer <token>`.")
    try:
        claims = jwt.decode(
            token,
            key_file.read_bytes(),
            algorithms=[COMMAND_ALGORITHM],
            audience=pod_uid,
            leeway=CLOCK_SKEW_SECONDS,
            options={"require": ["aud", "iat", "exp"]},
        )
        command = SpeculationCommand.model_validate(claims)
    except jwt.InvalidAudienceError:
        raise Refused(403, f"The command is not for pod {pod_uid}.") from None
    except ValidationError as failure:
        raise Refused(403, f"The command is not understood: {failure.errors()[0]['loc']}.") from None
    except OSError as failure:
        raise Refused(403, f"The operator's key {key_file} can not be read: {failure.strerror}.") from None
    except (jwt.PyJWTError, ValueError) as failure:
        raise Refused(401, f"The command is not signed by the operator: {failure}.") from None
    if command.exp - command.iat > COMMAND_VALID_SECONDS:
        raise Refused(403, f"The command is valid for more than {COMMAND_VALID_SECONDS} s.")
    return command
