"""JSON of an expected shape, told where it is not; what was found is never quoted."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from domain.biomedical.annotations import Unfit

SHOWN = 3
NOT_JSON = "not JSON"


class Shape(BaseModel):
    """Base of what is expected of a JSON value: no coercion; keys that nobody asks for are read over."""

    model_config = ConfigDict(strict=True, frozen=True)


AnyShape = TypeVar("AnyShape", bound=Shape)


def parsed(shape: type[AnyShape], value: str) -> AnyShape:
    """The JSON value in `value`. Raises Unfit when it is none or of another shape, with the places that differ."""
    try:
        return shape.model_validate_json(value)
    except ValidationError as error:
        raise _unfit(error) from None


def fitted(shape: type[AnyShape], value: object) -> AnyShape:
    """As `parsed`, of a value that was read before."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise _unfit(error) from None


def _unfit(error: ValidationError) -> Unfit:
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    if faults[0]["type"] == "json_invalid":
        return Unfit(NOT_JSON, "is the file cut off here?")
    told = [f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in faults[:SHOWN]]
    return Unfit("JSON of another shape", "; ".join([*told, *["…"][: len(faults) - SHOWN]]))
