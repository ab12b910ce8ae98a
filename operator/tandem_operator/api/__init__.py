"""SpeculativeDeployment as frozen pydantic models: the one source of the CRD (see `crd.py`)."""

from tandem_operator.api.base import GROUP, KIND, PLURAL, VERSION
from tandem_operator.api.resource import Metadata, SpeculativeDeployment
from tandem_operator.api.spec import Spec
from tandem_operator.api.status import Condition, Status

__all__ = ["GROUP", "KIND", "PLURAL", "VERSION", "Condition", "Metadata", "Spec", "SpeculativeDeployment", "Status"]
