import hashlib
import json
import os
from pathlib import Path
from typing import Annotated

import pytest

from bertrelay import fingerprint as prints
from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, fingerprint, stage_parts
from bertrelay.settings import RUN_ONLY, DataSource, HubDataset, InputFile, ModelSource, Settings


class Inner(DataSource):
    path: InputFile
    precision: str = "fp32"


class Example(Settings):
    rate: float = 0.1
    data: InputFile | None = None
    base: ModelSource | None = None
    corpus: HubDataset | None = None
    train: tuple[Inner, ...] = ()
    precision: str = "auto"
    workers: Annotated[int, RUN_ONLY] = 1


def parts(digests=None, upstream=None, revision=None, **settings):
    return stage_parts(
        "example",
        3,
        Example(**settings),
        digests or Digests(),
        upstream=lambda name: (upstream or {})[name],
        revision=lambda source: (revision or {})[source.hub_id],
    )


@pytest.fixture
def old_clock(monkeypatch):
    """Treats every file as older than the resolution of the clock, as the files of users are."""
    monkeypatch.setattr(prints, "CLOCK_GRAIN_NS", -1)


@pytest.fixture
def reads(monkeypatch):
    """The names of the files whose content is read."""
    read, open_file = [], Path.open

    def counted(path, *arguments, **options):
        if arguments == ("rb",):
            read.append(path.name)
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    return read


def test_the_hash_is_of_canonical_json():
    expected = hashlib.sha256('{"a":"é","b":[1,2.5,null]}'.encode()).hexdigest()
    assert fingerprint({"b": [1, 2.5, None], "a": "é"}) == expected == fingerprint({"a": "é", "b": [1, 2.5, None]})


def test_kind_version_and_settings_count_and_run_only_ones_do_not():
    stage = parts(precision="fp32", rate=1)
    assert stage["uses"] == "example"
    assert stage["uses.version"] == 3
    assert stage["rate"] == 1.0
    assert stage == parts(precision="fp32", rate=1.0, workers=8)
    assert stage != parts(precision="fp32", rate=2)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_precision_auto_counts_the_same_on_every_machine(monkeypatch, has_bf16):
    monkeypatch.setattr("bertrelay.device.computes_in_bf16", lambda *_: has_bf16)
    assert parts() == parts(precision="auto") != parts(precision="bf16")


def test_content_and_suffix_of_a_file_count_and_its_name_does_not(tmp_path):
    for name in ("a.tsv", "b.tsv", "c.csv", "v1.5.tsv.gz"):
        (tmp_path / name).write_text("one\n")
    (tmp_path / "d.tsv").write_text("two\n")
    digests = {name: parts(data=str(tmp_path / name))["data"] for name in ("a.tsv", "b.tsv", "c.csv", "d.tsv")}
    assert digests["a.tsv"] == digests["b.tsv"] == "file:.tsv:" + hashlib.sha256(b"one\n").hexdigest()
    assert len({digests["a.tsv"], digests["c.csv"], digests["d.tsv"]}) == 3
    assert parts(data=str(tmp_path / "v1.5.tsv.gz"))["data"].startswith("file:.tsv.gz:")


def test_names_and_contents_in_a_folder_count_and_hidden_files_do_not(tmp_path):
    def folder(name, **files):
        for inner, text in files.items():
            path = tmp_path / name / inner.replace("_", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return parts(base=str(tmp_path / name))["base"]

    first = folder("one", weights="w", pooling_config="c")
    assert first == folder("two", weights="w", pooling_config="c")
    assert first != folder("three", weights="w", pooling_other="c")
    assert first != folder("four", weights="v", pooling_config="c")
    (tmp_path / "one/.git").mkdir()
    (tmp_path / "one/.git/HEAD").write_text("x")
    assert first == parts(base=str(tmp_path / "one"))["base"]


def test_a_folder_that_cannot_be_read_whole_is_a_clear_error(tmp_path):
    odd = tmp_path / "model" / "odd"
    odd.parent.mkdir()
    for make in (lambda: odd.symlink_to("nothing"), lambda: os.mkfifo(odd), lambda: odd.symlink_to(tmp_path)):
        make()
        with pytest.raises(RequestError, match=f"expected .* at {odd}"):
            Digests().of_folder(odd.parent)
        odd.unlink()


def test_fingerprint_of_another_stage_and_the_inner_path_count():
    part = parts(base="@teacher/model", upstream={"teacher": "abc"})["base"]
    assert part == "output:abc/model" == parts(base="@renamed/model", upstream={"renamed": "abc"})["base"]
    assert part != parts(base="@teacher/model", upstream={"teacher": "abd"})["base"]


@pytest.mark.promise("A hub revision counts", about="skip")
def test_the_revision_of_a_hub_id_counts_pinned_or_looked_up():
    assert parts(base="owner/model@1")["base"] == "hub:owner/model@1"
    assert parts(base="owner/model", revision={"owner/model": "1"})["base"] == "hub:owner/model@1"
    assert parts(corpus="owner/data", revision={"owner/data": "2"})["corpus"] == "hub:owner/data@2"


ONE = hashlib.sha256(b"one").hexdigest()


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a").write_text("one")
    return tmp_path / "a"


@pytest.fixture
def memory(tmp_path):
    return tmp_path / "memory/digests.json"


def digest(file, memory):
    """The digest of the file, which `memory` then has."""
    digests = Digests(memory)
    file_digest = digests.of_file(file)
    digests.save()
    return file_digest


@pytest.mark.usefixtures("old_clock")
def test_a_file_is_read_once_until_it_changes(file, memory, reads):
    assert [digest(file, memory) for _ in range(3)] == [ONE] * 3
    assert reads == ["a"]
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Digests(memory).of_file(file) == hashlib.sha256(b"two").hexdigest()


@pytest.mark.usefixtures("old_clock")
def test_verify_reads_every_file_again_and_only_once(file, memory, reads):
    digest(file, memory)
    entries = json.loads(memory.read_text())
    entries[str(file)][-1] = "wrong"
    memory.write_text(json.dumps(entries))
    assert Digests(memory).of_file(file) == "wrong"
    verifying = Digests(memory, verify=True)
    assert verifying.of_file(file) == verifying.of_file(file) == ONE
    assert reads == ["a", "a"]


def test_a_file_written_a_moment_ago_is_not_trusted_to_stay(file, memory):
    assert digest(file, memory) == ONE
    assert json.loads(memory.read_text()) == {}


@pytest.mark.usefixtures("old_clock")
@pytest.mark.parametrize("harm", ["", "{", "[1]", '{"a": 3}', '{"PATH": [1, 2]}'])
def test_a_damaged_memory_is_replaced(file, memory, harm):
    memory.parent.mkdir()
    memory.write_text(harm.replace("PATH", str(file)))
    assert digest(file, memory) == ONE
    assert json.loads(memory.read_text())[str(file)][-1] == ONE


@pytest.mark.usefixtures("old_clock")
def test_a_renamed_folder_keeps_its_digests(tmp_path, reads):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/a").write_text("one")
    digests = Digests(tmp_path / "digests.json")
    digests.of_file(tmp_path / "old/a")
    (tmp_path / "old").rename(tmp_path / "new")
    digests.moved(tmp_path / "old", tmp_path / "new")
    digests.of_file(tmp_path / "new/a")
    assert reads == ["a"]
