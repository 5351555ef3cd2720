from itertools import permutations

import numpy as np

from students.evaluate import Lookup
from students.parallel.corpus import Translations

NOUNS = {"dog": "perro", "cat": "gato", "bird": "pájaro", "horse": "caballo", "mouse": "ratón"}
VERBS = {"sees": "ve", "hears": "oye", "seeks": "busca"}


def pairs(swap: bool = False, reorder: bool = False) -> Translations:
    """`the dog sees the cat` and word for word what it is, with the verb first or with the roles swapped."""
    english, other = [], []
    for subject, object_ in permutations(NOUNS, 2):
        for verb, translated in VERBS.items():
            roles = (object_, subject) if swap else (subject, object_)
            words = [NOUNS[roles[0]], translated, NOUNS[roles[1]]]
            english.append(f"{subject} {verb} {object_}")
            other.append(" ".join(sorted(words, reverse=True) if reorder else words))
    return Translations(english, other)


def one_way() -> Translations:
    """Of each two sentences that differ in who does what to whom, one."""
    both = pairs(reorder=True)
    kept = [i for i, english in enumerate(both.english) if english.split()[0] < english.split()[2]]
    return Translations([both.english[i] for i in kept], [both.other[i] for i in kept])


def test_the_dictionary_is_the_one_the_corpus_was_made_with() -> None:
    lookup = Lookup(pairs())
    english = lookup.english.get_feature_names_out()
    other = lookup.other.get_feature_names_out()
    learnt = {other[row]: english[column] for row, column in zip(*lookup.translation.nonzero(), strict=True)}
    assert learnt == {translated: word for word, translated in {**NOUNS, **VERBS}.items()}


def test_dice_chooses_the_translation_by_hand() -> None:
    lookup = Lookup(Translations(["a b", "a b", "a c"], ["x", "x", "y"]))
    # x with a: 2·2/(2+3), with b: 2·2/(2+2); y with a: 2·1/(1+3), with c: 2·1/(1+1).
    english = lookup.english.get_feature_names_out()
    best = np.asarray(lookup.translation.argmax(axis=1)).ravel()
    assert english[best].tolist() == ["b", "c"]


def test_words_never_seen_find_nothing_and_do_no_harm() -> None:
    test = Translations(["dog sees cat", "zebra grazes"], ["perro ve gato", "cebra pasta"])
    metrics = Lookup(pairs()).metrics("es", test)
    assert metrics["lookup_accuracy/es-en"] == 0.5
