"""The account of records that cannot be used: counted by reason, listed by file and line, too many of them an error."""

import json
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from bertrelay.errors import WorkError

HOPELESS = 1000


class Rejects:
    """Counts the records that cannot be used and lists them in `rejects.jsonl`, by file, line and reason alone.

    path: written while the work goes on, and empty when nothing was rejected; None only counts.
    limit: the share of all records that may be rejected. Leaving the context raises WorkError past it, and so does
    `add` as soon as there are a thousand rejects and they outnumber what is used: sooner, a bad stretch at the
    beginning of a good file would be taken for the whole.
    """

    def __init__(self, path: Path | None, limit: float = 0.01) -> None:
        self.path = path
        self.limit = limit
        self.counts: Counter[str] = Counter()
        self._used = 0
        self._first = ""
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        return self

    def add(self, file: str, line: int, reason: str) -> None:
        """Counts one record that cannot be used."""
        self.counts[reason] += 1
        self._first = self._first or f"{file}, line {line:,}"
        if self._file is not None:
            self._file.write(json.dumps({"file": file, "line": line, "reason": reason}, ensure_ascii=False) + "\n")
        rejected = self.counts.total()
        if rejected >= HOPELESS and rejected > self._used:
            self._check()

    def used(self, n: int = 1) -> None:
        """Counts `n` records that were used."""
        self._used += n

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if kind is None:
            self._check()

    def _check(self) -> None:
        rejected = self.counts.total()
        seen = rejected + self._used
        if rejected <= self.limit * seen:
            return
        reasons = ", ".join(f"{count:,} × {reason}" for reason, count in self.counts.most_common())
        listed = f" {self.path} lists them." if self.path else ""
        raise WorkError(
            f"{rejected:,} of {seen:,} records cannot be used, more than the {self.limit:.2%} allowed: {reasons}. "
            f"The first is {self._first}.{listed} Mend the data, or allow a larger share with max_rejects."
        )
