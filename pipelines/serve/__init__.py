"""The server: models over HTTP, in the forms that clients of embedding servers know."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from pipelines.serve.application import app
    from pipelines.serve.settings import ServeSettings

__all__ = ["ServeSettings", "app"]
__getattr__ = loader(__name__, {"ServeSettings": "settings", "app": "application"})
