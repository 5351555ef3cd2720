"""Routes of the server: a path, the body that it reads, and the function that answers it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pipelines.serve.models import AnyServed, Models, Served
from pipelines.serve.requests import Body, Refusal, RefusalKind, Usage

ErrorForm = Callable[[Refusal], tuple[int, Mapping[str, Any]]]
"""A refusal as the status and the body of an answer, in the form that the clients of a route expect."""
OPENAI_TYPES = {"unauthorized": "authentication_error", "forbidden": "permission_error", "busy": "rate_limit_error"}


def openai_error(refusal: Refusal) -> tuple[int, Mapping[str, Any]]:
    """An error in OpenAI's form."""
    kind = OPENAI_TYPES.get(refusal.kind, "server_error" if refusal.status >= 500 else "invalid_request_error")
    error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
    return refusal.status, {"error": error}


@dataclass(frozen=True)
class Endpoint:
    """A route that answers POST.

    kind: the kind of model that it needs; a server without one does not list it.
    body: the fields of a request. summary: for the documentation. example: a body, for the documentation.
    """

    path: str
    kind: type[Served]
    body: type[Body]
    answer: Callable[[Models, Any, Usage], Awaitable[Any]]
    summary: str
    example: Mapping[str, Any]
    error: ErrorForm = openai_error


def parse(body: type[Body], content: bytes) -> Body:
    """The fields of a request. Raises Refusal, which names the fields at fault and never quotes their content."""
    try:
        return body.model_validate_json(content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
    fields = list(dict.fromkeys(str(fault["loc"][0]) for fault in faults if fault["loc"]))
    if not fields:
        raise Refusal(f"body: expected a JSON object ({', '.join(body.model_fields)}), found another, or no JSON")
    message = "; ".join(f"{name}: {_expected(name, faults)}" for name in fields if name in body.model_fields)
    kind: RefusalKind = "empty" if any(fault["type"] == "too_short" for fault in faults) else "invalid"
    raise Refusal(message or "the fields of the body do not fit together", kind, param=fields[0])


def _expected(field: str, faults: list[Any]) -> str:
    return ", or ".join(dict.fromkeys(fault["msg"] for fault in faults if fault["loc"][0] == field))


def one_of(kind: type[AnyServed], models: Models, body: Body) -> AnyServed:
    """The model that a request names, or the first of the kind."""
    return models.find(kind, body.model)
