"""Word-for-word lookup against arithmetic by hand, and its limits."""

from itertools import permutations

from scipy.sparse import csr_matrix

from students.evaluate.lookup import best_by_dice, lookup_metrics
from students.parallel.pairs import Translations

NOUNS = {"dog": "perro", "cat": "gato", "bird": "pájaro", "horse": "caballo", "mouse": "ratón"}
VERBS = {"sees": "ve", "hears": "oye", "seeks": "busca"}


def pairs(reorder=False):
    """`dog sees cat` and its translation word for word; reordered, nobody can say who sees whom."""
    english, other = [], []
    for subject, object_ in permutations(NOUNS, 2):
        for verb, translated in VERBS.items():
            words = [NOUNS[subject], translated, NOUNS[object_]]
            english.append(f"{subject} {verb} {object_}")
            other.append(" ".join(sorted(words, reverse=True) if reorder else words))
    return Translations(english, other)


def test_dice_chooses_the_translation_by_hand():
    english = csr_matrix([[1, 1, 0], [1, 1, 0], [1, 0, 1]])  # of the sentences "a b", "a b", "a c"
    other = csr_matrix([[1, 0], [1, 0], [0, 1]])  # "x", "x", "y"
    # x with a: 2·2/(2+3), with b: 2·2/(2+2); y with a: 2·1/(1+3), with c: 2·1/(1+1).
    assert best_by_dice(other, english).toarray().tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_dictionary_solves_reordered_words_and_not_who_does_what_to_whom():
    half = lookup_metrics("es", pairs(), pairs(reorder=True))  # both readings are one Spanish text; one is drawn
    assert half["lookup_accuracy/en-es"] == 1 and half["lookup_accuracy/es-en"] == 0.5
    unseen = Translations(["dog sees cat", "zebra grazes"], ["perro ve gato", "cebra pasta"])
    assert lookup_metrics("es", pairs(), unseen)["lookup_accuracy/es-en"] == 0.5
