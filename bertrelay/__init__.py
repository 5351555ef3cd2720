"""The ground floor: sentence encoder, batches, training loop, checkpoints, records. Knows no task."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertrelay.encoder import SentenceEncoder

__all__ = ["SentenceEncoder"]


def __getattr__(name: str) -> object:
    """Loads the encoder, and torch with it, only when somebody asks for it."""
    if name == "SentenceEncoder":
        from bertrelay.encoder import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
