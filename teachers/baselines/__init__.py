"""What sentence encoders are compared with: word vectors, TF-IDF, networks that read two sentences at once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from teachers.baselines.cross_encoder import CrossEncoder

__all__ = ["CrossEncoder"]


def __getattr__(name: str) -> object:
    """Loads torch only when somebody asks for what needs it."""
    if name == "CrossEncoder":
        from teachers.baselines.cross_encoder import CrossEncoder

        return CrossEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
