import pytest

from bertrelay.errors import RequestError
from bertrelay.parts import Parts, Stretch, fill
from bertrelay.stage import ProcessGroup


def test_progress_counts_blocks_when_they_are_whole_and_those_of_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bertrelay.progress.SECONDS_BETWEEN_LINES", -1.0)  # a line for each step of it
    parts = Parts(tmp_path / "output", [Stretch(0, 2, 20), Stretch(2, 3, 30), Stretch(3, 5, 50)])
    parts.begin({})
    parts.write(1, ["2\n"])

    computed = fill(
        parts, lambda blocks: ([f"{first}\n"] for first, _, _ in blocks), "tagging", "words", ProcessGroup()
    )

    assert computed == 70
    assert [path.read_text() for path in parts.paths] == ["0\n", "2\n", "3\n"]
    told = [line.partition(", ")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["tagging: going on after 30 of 100 words", "tagging: 50 of 100 words", "tagging: 100 of 100 words"]


def test_a_folder_of_somebody_elses_is_refused_and_stays(tmp_path):
    parts = Parts(tmp_path / "output", [Stretch(0, 2, 20)])
    parts.folder.mkdir()
    (parts.folder / ".holds.json.x").write_text("")  # what a kill leaves
    parts.begin({"a": 1})
    parts.begin({"a": 2})
    (parts.folder / "holds.json").unlink()
    (parts.folder / "mine.txt").write_text("mine")
    with pytest.raises(RequestError, match="expected nothing, or what an earlier call left there"):
        parts.begin({"a": 2})
    assert (parts.folder / "mine.txt").read_text() == "mine"


def test_a_symbolic_link_is_refused_and_what_stands_behind_it_stays(tmp_path):
    parts = Parts(tmp_path / "output", [Stretch(0, 2, 20)])
    (tmp_path / "elsewhere").mkdir()
    parts.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match=r"output\.partial: .* found a symbolic link"):
        parts.begin({})
    assert list((tmp_path / "elsewhere").iterdir()) == []
