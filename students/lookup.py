"""Word-for-word lookup, the baseline that shows how much of a test set a dictionary alone solves.

The dictionary is learnt from parallel sentences: each word's translation is the English word with the highest Dice
coefficient 2·n(both) / (n(word) + n(English word)), counted in sentences. A sentence becomes its words looked up, and
finds the English sentence with the nearest TF-IDF vector.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from bertrelay.stage import Metrics
from students.corpus import Translations
from students.scores import translation_metrics

WORDS = r"(?u)\w+"


class Lookup:
    """A dictionary from one language to English."""

    def __init__(self, pairs: Translations) -> None:
        self.english = CountVectorizer(token_pattern=WORDS, binary=True)
        self.other = CountVectorizer(token_pattern=WORDS, binary=True)
        english_in = self.english.fit_transform(pairs.english)  # (pairs, English words)
        other_in = self.other.fit_transform(pairs.other)  # (pairs, words)
        self.translation = _best_by_dice(other_in, english_in)  # (words, English words), one 1 in a row
        self.weights = TfidfTransformer().fit(english_in)

    def metrics(self, language: str, test: Translations) -> Metrics:
        """`lookup_accuracy/en-<language>` and back, on held-out pairs."""
        english = self.weights.transform(self.english.transform(test.english))
        looked_up = self.weights.transform(self.other.transform(test.other) @ self.translation)
        return translation_metrics(language, _dense(english), _dense(looked_up), name="lookup_accuracy")


def _best_by_dice(other_in: csr_matrix, english_in: csr_matrix) -> csr_matrix:
    together = (other_in.T @ english_in).tocoo()  # (words, English words)
    counts = np.asarray(other_in.sum(axis=0)).ravel(), np.asarray(english_in.sum(axis=0)).ravel()
    dice = 2 * together.data / (counts[0][together.row] + counts[1][together.col])
    order = np.lexsort((together.col, -dice, together.row))  # by word, best first, ties by the alphabet
    _, first = np.unique(together.row[order], return_index=True)
    best = order[first]
    shape = (other_in.shape[1], english_in.shape[1])
    return csr_matrix((np.ones(len(best)), (together.row[best], together.col[best])), shape=shape)


def _dense(vectors: csr_matrix) -> NDArray[np.float32]:
    return np.asarray(vectors.todense(), dtype=np.float32)
