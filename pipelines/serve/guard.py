"""Checks of every request before it is answered, and the headers of every answer.

A page of another site must not ask the server, neither by its own Origin nor by a name that it lets point at this
machine (DNS rebinding): an address cannot be rebound, so any may be in Host, and of names only the allowed ones.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from pipelines.serve.requests import Refusal
from pipelines.serve.settings import ServeSettings

OPEN_PATHS = frozenset({"/", "/health", "/docs", "/openapi.json"})
"""Paths without data, which need no key."""
LOCAL_NAMES = frozenset({"localhost"})
REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


def content_policy(scripts: Iterable[str] = (), styles: Iterable[str] = ()) -> str:
    """The Content-Security-Policy of a page that has these scripts and styles inside, and nothing from elsewhere."""
    listed = {"script-src": _digests(scripts), "style-src": _digests(styles)}
    inside = "; ".join(f"{name} {digests}" for name, digests in listed.items())
    return (
        f"default-src 'none'; {inside}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digests(contents: Iterable[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": content_policy(),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """The hosts, origins and keys by which a server may be asked."""

    def __init__(self, settings: ServeSettings, keys: Sequence[str]) -> None:
        self.hosts = LOCAL_NAMES | {host.lower() for host in settings.allow_host}
        self.origins = frozenset(origin.rstrip("/").lower() for origin in settings.allow_origin)
        self._keys = [_digest(key) for key in keys]

    def check(self, path: str, headers: Headers) -> None:
        """Raises Refusal for a request by another host, from another site's page, or without a key."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_allowed(hosts[0]):
            raise Refusal("Host: expected this server's address, or a name given by --allow-host", "forbidden")
        origin = headers.get("origin")
        if origin is not None and not self.allows_origin(origin, hosts[0]):
            raise Refusal("Origin: expected this server's page, or a site given by --allow-origin", "forbidden")
        if self._keys and path not in OPEN_PATHS and not self._has_key(headers.get("authorization", "")):
            message = "Authorization: expected Bearer and a key of the server"
            raise Refusal(message, "unauthorized", code="invalid_api_key")

    def allows_origin(self, origin: str, host: str) -> bool:
        """True for the page of this server, and for sites that the settings name."""
        return origin.lower() in self.origins or origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())

    def is_other_site(self, origin: str) -> bool:
        """True for an allowed site that is another than this server's page."""
        return origin.lower() in self.origins

    def _is_allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self.hosts:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def _has_key(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, one) for one in self._keys]  # all, so that time says nothing
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def request_id(headers: Headers) -> str | None:
    """The id that the client gives its request; None where it gives none, or one that could be text."""
    sent = headers.get("x-request-id", "")
    return sent if REQUEST_ID.fullmatch(sent) else None
