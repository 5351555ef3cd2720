"""Putting words together, the same in every language."""


def joined(*parts: str | None) -> str:
    """The parts that are there, with one space between them."""
    return " ".join(part for part in parts if part)


def sentence(text: str) -> str:
    """`text` with a capital at its start and a full stop at its end."""
    return f"{text[0].upper()}{text[1:]}."
