"""What the OpenAPI file says about a body that we read ourselves."""

from __future__ import annotations

from dataclasses import dataclass

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Reference, RequestBody, Schema

OBJECT = Schema(type=OpenAPIType.OBJECT, additional_properties=True)
TEXT = Schema(type=OpenAPIType.STRING)

PROPERTIES: dict[str, Schema | Reference] = {
    "pipeline": TEXT,
    "user_id": TEXT,
    "parameters": OBJECT,
    "priority": Schema(type=OpenAPIType.INTEGER, minimum=-1000, maximum=1000),
    "delay": Schema(one_of=[Schema(type=OpenAPIType.NUMBER, minimum=0), TEXT]),
    "metadata": OBJECT,
}

AS_JSON = Schema(type=OpenAPIType.OBJECT, properties=PROPERTIES, additional_properties=False)
AS_FORM = Schema(
    type=OpenAPIType.OBJECT,
    properties=PROPERTIES,
    additional_properties=True,
    description="The pipeline's parameters, each as a part of its own name: files as files, others as text or JSON.",
)


@dataclass
class SubmitOperation(Operation):
    def __post_init__(self) -> None:
        self.request_body = RequestBody(
            required=True,
            content={
                "application/json": OpenAPIMediaType(schema=AS_JSON),
                "multipart/form-data": OpenAPIMediaType(schema=AS_FORM),
            },
        )
