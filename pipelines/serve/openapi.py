"""The documentation of the routes: `/openapi.json` for programs, `/docs` for people, which loads nothing else."""

import json
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from pipelines.serve.endpoints import Endpoint

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: start; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; }
pre { overflow-x: auto; padding: .6rem; background: #8882; }
"""


def openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The description of all routes by OpenAPI 3.1."""
    schemas, paths = dict[str, Any](), dict[str, Any]()
    for endpoint in endpoints:
        schema = endpoint.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {endpoint.body.__name__: schema}
        reference = {"$ref": f"#/components/schemas/{endpoint.body.__name__}"}
        content = {"application/json": {"schema": reference, "example": endpoint.example}}
        responses = {"200": {"description": "The answer."}, "default": {"description": "A refusal, with its reason."}}
        body = {"required": True, "content": content}
        paths[endpoint.path] = {"post": {"summary": endpoint.summary, "requestBody": body, "responses": responses}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "BertRelay", "version": version("bertrelay")},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def docs_page(endpoints: Sequence[Endpoint], address: str) -> str:
    """The routes with their fields and an example of each, as HTML without scripts."""
    parts = [_section(endpoint, address) for endpoint in endpoints]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Routes of this server</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><body><main><h1>Routes of this server</h1>"
        '<p>For programs: <a href="openapi.json">openapi.json</a>. Also GET: /health, /v1/models, /info, /metrics.</p>'
        f"{''.join(parts)}</main></body></html>"
    )


def _section(endpoint: Endpoint, address: str) -> str:
    fields = endpoint.body.model_fields.items()
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{'required' if field.is_required() else ''}</td>"
        f"<td>{escape(field.description or '')}</td></tr>"
        for name, field in fields
    )
    example = escape(f"curl {address}{endpoint.path} -d '{json.dumps(endpoint.example, ensure_ascii=False)}'")
    return (
        f"<h2>POST {escape(endpoint.path)}</h2><p>{escape(endpoint.summary)}</p>"
        f"<table><tr><th>field<th><th>meaning{rows}</table><pre>{example}</pre>"
    )
