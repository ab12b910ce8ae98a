"""What every API model shares: camelCase names, frozen values, and CEL rules that travel into the CRD."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

GROUP = "tandem.dev"
VERSION = "v1alpha1"
KIND = "SpeculativeDeployment"
PLURAL = "speculativedeployments"
SHORT_NAME = "specdep"
RULES = "x-kubernetes-validations"


class Rule(NamedTuple):
    """A CEL rule on the object that carries it, and the sentence that `kubectl apply` prints when it does not hold."""

    rule: str
    message: str


class ApiModel(BaseModel):
    """Unknown fields are ignored: the API server prunes them, and a newer CRD may know more than this operator."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        if cls.rules:
            handler.resolve_ref_schema(schema)[RULES] = [rule._asdict() for rule in cls.rules]
        return schema


# Every string, list and map is bounded: the API server estimates the cost of CEL rules from the bounds.
Name = Annotated[str, Field(min_length=1, max_length=253)]
ShortText = Annotated[str, Field(max_length=1024)]
Sentence = Annotated[str, Field(max_length=4096)]
StringMap = Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=64)]
Quantity = Annotated[int | str, Field(json_schema_extra={"x-kubernetes-int-or-string": True})]


class NamedReference(ApiModel):
    name: Name
