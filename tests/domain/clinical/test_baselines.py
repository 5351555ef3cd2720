"""What a model has to beat, where there is something to count and where there is not."""

import numpy as np
from noted_patients import stays, write_stays

from domain.clinical.outcomes.baselines import baselines
from domain.clinical.outcomes.labelled_notes import read_labelled_notes


def names_of(folder, table) -> list[str]:
    write_stays(folder, table)
    notes = read_labelled_notes(folder / "notes", folder / "cohort")
    found = dict(baselines(notes, notes.is_in("validation") | notes.is_in("test")))
    assert all(np.isfinite(probabilities).all() for probabilities in found.values())
    return list(found)


def test_where_no_word_stands_in_two_notes_there_is_no_baseline_of_words_and_it_is_told(tmp_path, capsys):
    table = stays(40)
    assert names_of(tmp_path, table) == ["note_length", "tfidf"]
    assert "no word" not in capsys.readouterr().err
    assert names_of(tmp_path, table.assign(text=[f"word{n}" * (1 + n % 3) for n in range(40)])) == ["note_length"]
    assert "no word stands in 2 notes of train: there is no baseline" in capsys.readouterr().err
