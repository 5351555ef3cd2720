"""Word-for-word lookup in a dictionary that is made of parallel sentences: a baseline of translation accuracy."""

from typing import TYPE_CHECKING

import numpy as np

from bertrelay.errors import RequestError
from bertrelay.stage import Metrics
from students.evaluate.translation import translation_metrics
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WORDS = r"(?u)\w+"


def lookup_metrics(language: str, train: Translations, test: Translations) -> Metrics:
    """`lookup_accuracy/en-<language>` and `<language>-en`: the accuracy of a dictionary only, as a baseline.

    1. A word's translation is the English word of the highest Dice coefficient in the sentences of `train`,
       2·n(both) / (n(word) + n(English word)).
    2. A sentence of `test` becomes the translations of its words.
    3. Its translation is the English sentence of the nearest TF-IDF vector.

    Raises RequestError where the sentences of a language to train on have no words.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer  # slow to load, seldom needed

    english, other = (CountVectorizer(token_pattern=WORDS, binary=True) for _ in range(2))
    try:
        english_in, other_in = english.fit_transform(train.english), other.fit_transform(train.other)  # (pairs, words)
    except ValueError:  # an empty vocabulary
        raise RequestError(
            f"lookup: expected words in {ENGLISH} and {language}, found none in one of them; check the sources"
        ) from None
    dictionary = best_by_dice(other_in, english_in)
    weights = TfidfTransformer().fit(english_in)
    counts = english.transform(test.english), other.transform(test.other) @ dictionary  # (sentences, English words)
    by_english, by_lookup = (np.asarray(weights.transform(words).todense(), np.float32) for words in counts)
    vectors = by_english, by_lookup
    return translation_metrics(language, vectors, "lookup_accuracy", with_intervals=True, drawn_from=test)


def best_by_dice(other_in: "csr_matrix", english_in: "csr_matrix") -> "csr_matrix":
    """A dictionary (words, English words) with one 1 in a row, from the words of sentence pairs, (pairs, words).

    Example: "x", "x", "y" translate "a b", "a b", "a c". Dice of x and a is 2·2/(2+3) = .8, of x and b 2·2/(2+2) = 1;
    of y and a 2·1/(1+3) = .5, of y and c 2·1/(1+1) = 1. So x is b, and y is c.
    """
    from scipy.sparse import csr_matrix

    together = (other_in.T @ english_in).tocoo()  # (words, English words)
    counts = np.asarray(other_in.sum(axis=0)).ravel(), np.asarray(english_in.sum(axis=0)).ravel()
    dice = 2 * together.data / (counts[0][together.row] + counts[1][together.col])
    order = np.lexsort((together.col, -dice, together.row))  # by word, best first, ties in alphabetical order
    _, first = np.unique(together.row[order], return_index=True)
    best = order[first]
    shape = (other_in.shape[1], english_in.shape[1])
    return csr_matrix((np.ones(len(best)), (together.row[best], together.col[best])), shape=shape)
