"""The page of the server: one file, whose script and style are the only ones that its policy allows."""

import re
from functools import cache
from pathlib import Path

from pipelines.serve.guard import content_policy

FILE = Path(__file__).with_name("page.html")


@cache
def page() -> tuple[str, str]:
    """The page as HTML, and its Content-Security-Policy."""
    html = FILE.read_text("utf-8")
    scripts, styles = (re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL) for tag in ("script", "style"))
    return html, content_policy(scripts, styles)
