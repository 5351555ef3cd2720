"""Questions that belong in one split: those of one article, of one pool of snippets, and of equal contexts."""

from domain.biomedical.answers.questions import Question

Key = tuple[str, int]


class Groups:
    """Questions joined as they come. A group is named by the first of its articles in the order of their names.

    So an article that shares nothing with others stands where its name alone puts it, whoever comes.
    """

    def __init__(self) -> None:
        self._above: dict[Key, Key] = {}
        self._names: dict[Key, str] = {}  # of the topmost

    def __len__(self) -> int:
        return len({self._top(key) for key in self._above})

    def join(self, question: Question) -> None:
        """Puts the article, the pool and the context of a question together."""
        keys = _keys(question)
        for key in keys:
            self._above.setdefault(key, key)
        tops = [self._top(key) for key in keys]
        self._names[tops[0]] = min([question.document, *(self._names[top] for top in tops if top in self._names)])
        for top in tops[1:]:
            self._above[top] = tops[0]

    def name(self, question: Question) -> str:
        """The name of the group that the question is in."""
        return self._names[self._top(_keys(question)[0])]

    def _top(self, key: Key) -> Key:
        while (above := self._above[key]) != key:
            self._above[key] = key = self._above[above]
        return key


def _keys(question: Question) -> list[Key]:
    pool = [("pool", hash(question.pool))] if question.pool else []
    return [("article", hash(question.document)), ("context", hash(question.context)), *pool]
