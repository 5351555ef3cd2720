import json
from dataclasses import replace

import light_stages
import pytest

from bertrelay.errors import RequestError, WorkError
from pipelines import registry
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run import runner
from pipelines.run.plan import RunOptions, left_behind, make_plan
from pipelines.run.store import partial_of, read_done

LESSON = """
[teacher]
uses = "light.teach"
data = "pairs.tsv"
base = "base"

[student]
uses = "light.learn"
teacher = "@teacher/model"

[score]
uses = "light.score"
model = "@student/model"

[aside]
uses = "light.teach"
"""


@pytest.fixture
def lesson(write_recipe, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    (tmp_path / "base" / "weights").write_bytes(b"\0" * 100)
    return write_recipe(LESSON)


@pytest.fixture
def planned(runs, tmp_path):
    """The actions and reasons of a plan. revisions: what the lock file knows."""

    def plan(path, *overrides, revisions=None, **options):
        if revisions:
            (tmp_path / "lesson.lock").write_text(json.dumps(revisions))
        made = make_plan(read_recipe(path, light_stages.REGISTRY, overrides), RunOptions(runs=runs, **options))
        return {step.step.label: (step.action.value, *step.reasons) for step in made.steps}

    return plan


@pytest.mark.promise("A finished run is skipped", about="skip")
def test_everything_runs_the_first_time_and_is_skipped_the_second(lesson, go, planned):
    assert set(planned(lesson).values()) == {("RUN", "first time")}
    go(lesson)
    assert set(planned(lesson).values()) == {("SKIP",)}


def test_a_changed_setting_runs_its_stage_and_its_dependents(lesson, go, planned):
    go(lesson, "student.epochs=6")
    assert planned(lesson, "student.epochs=8") == {
        "teacher": ("SKIP",),
        "student": ("RUN", "student.epochs: 6 → 8"),
        "score": ("RUN", "upstream student: student.epochs: 6 → 8"),
        "aside": ("SKIP",),
    }
    assert planned(lesson, "teacher.rate=0.5", "student.epochs=6")["score"] == (
        "RUN",
        "upstream teacher: teacher.rate: 0.1 → 0.5",
    )


def test_what_a_skipped_upstream_changed_to_is_reported(lesson, go, planned):
    go(lesson)
    go(lesson, "teacher.epochs=2", only=["teacher"])
    assert planned(lesson)["teacher"] == ("SKIP",)  # a former result is found again
    assert planned(lesson, "teacher.epochs=2")["student"] == ("RUN", "upstream teacher: teacher.epochs: 1 → 2")


def test_a_flipped_byte_of_an_input_is_found_and_named(lesson, tmp_path, monkeypatch, go, planned):
    monkeypatch.chdir(tmp_path)
    go(lesson)
    (tmp_path / "pairs.tsv").write_text("a\tc\n")
    found = planned(lesson)
    assert found["teacher"] == ("RUN", "file pairs.tsv changed (teacher.data)")
    assert found["student"] == ("RUN", "upstream teacher: file pairs.tsv changed (teacher.data)")
    assert found["aside"] == ("SKIP",)
    weights = tmp_path / "base" / "weights"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert planned(lesson)["teacher"][2] == "file base changed (teacher.base)"


@pytest.mark.promise("A moved input changes nothing", about="skip")
def test_a_moved_input_changes_nothing(lesson, tmp_path, go, planned):
    go(lesson)
    (tmp_path / "pairs.tsv").rename(tmp_path / "others.tsv")
    assert planned(lesson, f"teacher.data={tmp_path}/others.tsv")["teacher"] == ("SKIP",)


def test_verify_finds_what_a_file_system_without_times_hides(lesson, tmp_path, monkeypatch, go, planned):
    monkeypatch.setattr("bertrelay.fingerprint.file_stamp", lambda path: [path.stat().st_size, 0, 0, 0])
    go(lesson)
    (tmp_path / "pairs.tsv").write_text("a\tc\n")
    assert planned(lesson)["teacher"][0] == "SKIP"
    assert planned(lesson, verify=True)["teacher"][0] == "RUN"


def test_a_damaged_output_is_made_again_and_its_dependents_are_not(lesson, go, planned, runs):
    go(lesson)
    weights = runs / "lesson/teacher/latest/model/weights.txt"
    changed = "model/weights.txt was changed after it was written"
    for harm, message in (
        (lambda: weights.write_text("2 0"), changed),
        (lambda: weights.write_text("longer than before"), changed),
        (weights.unlink, "model/weights.txt is missing"),
        (lambda: (runs / "lesson/teacher/latest/done.json").write_text("{"), "done.json cannot be read"),
    ):
        harm()
        found = planned(lesson)
        assert (found["teacher"], found["student"]) == (("RUN", message), ("SKIP",))
        go(lesson)
        assert weights.read_text() == "1 0"
        assert set(planned(lesson).values()) == {("SKIP",)}


@pytest.fixture
def partial_folder(lesson, go, runs):
    """The folder of `aside`, as it is after all stages ran and this one was then killed."""
    go(lesson)
    latest = (runs / "lesson/aside/latest").resolve()
    partial = latest.rename(partial_of(latest))
    (partial / "done.json").unlink()
    return partial


def test_started_work_resumes_and_an_empty_start_does_not(lesson, partial_folder, planned):
    assert planned(lesson)["aside"] == ("RESUME", "started and not finished")
    lost = "unfinished work is removed; without --force it would resume"
    assert planned(lesson, force=["aside"])["aside"] == ("RUN", "forced: it restarts", lost)
    for path in [*partial_folder.glob("model/*"), *partial_folder.glob("m*")]:
        path.rmdir() if path.is_dir() else path.unlink()
    assert planned(lesson)["aside"] == ("RUN", "first time")


def test_what_other_settings_left_unfinished_is_reported_with_its_size_and_stays(lesson, partial_folder, go, runs):
    def left(*overrides):
        recipe = read_recipe(lesson, light_stages.REGISTRY, overrides)
        return left_behind(make_plan(recipe, RunOptions(runs=runs)))

    assert left() == {}  # these settings resume it
    size = sum(path.stat().st_size for path in partial_folder.rglob("*") if path.is_file())
    assert left("aside.epochs=9") == {partial_folder: size}
    go(lesson, "aside.epochs=9")
    assert partial_folder.is_dir()


def test_force_and_only_choose_stages_and_unknown_ones_are_refused(lesson, go, planned):
    go(lesson)
    assert planned(lesson, force=["student"])["student"] == ("RUN", "forced: it restarts")
    assert list(planned(lesson, only=["student"])) == ["teacher", "student"]
    with pytest.raises(RequestError, match="--force student: without effect, because --only leaves it out"):
        planned(lesson, only=["teacher"], force=["student", "teacher"])
    for choice in ({"only": ["studnet"]}, {"force": ["studnet"]}):
        with pytest.raises(RequestError, match='did you mean "student"'):
            planned(lesson, **choice)


def test_all_missing_inputs_are_reported_at_once(lesson, tmp_path, planned):
    (tmp_path / "pairs.tsv").unlink()
    with pytest.raises(RequestError) as error:
        planned(lesson, "aside.base=./none")
    assert f"[teacher] data: expected a file or a folder, found neither at {tmp_path}/pairs.tsv" in str(error.value)
    assert "[aside] base: expected a model folder" in str(error.value)
    with pytest.raises(RequestError, match=r"/data/sts/sick/SICK_train.txt; check the path, or --set vars.data=DIR"):
        make_plan(read_recipe("sbert", registry.REGISTRY), RunOptions(runs=tmp_path))
    assert list(planned(lesson, "teacher.base=@aside/model", only=["aside"])) == ["aside"]


def test_an_unknown_revision_is_reported_and_a_known_one_counts(write_recipe, go, planned, monkeypatch):
    path = write_recipe(
        '[t]\nuses = "light.teach"\nbase = "owner/model"\n[s]\nuses = "light.learn"\nteacher = "@t/model"'
    )
    unknown = "model owner/model: its revision is not known before the first run"
    assert planned(path) == {"t": ("RUN", unknown), "s": ("RUN", "upstream t: its inputs are not all known yet")}
    monkeypatch.setattr("pipelines.run.hub.ask_hub", lambda _: "abc")
    go(path)
    assert planned(path, "t.base=owner/model@abc")["t"] == ("SKIP",)
    assert planned(path, revisions={"model owner/model": "def"})["t"] == (
        "RUN",
        "t.base: owner/model@abc → owner/model@def",
    )


def test_a_reference_to_what_a_finished_stage_did_not_write_is_found_by_the_plan(lesson, go, planned):
    go(lesson, only=["teacher"])
    with pytest.raises(RequestError, match=r"^\[student\] @teacher/modle: .*; did you mean \"model\"\? It wrote: "):
        planned(lesson, "student.teacher=@teacher/modle")


def test_a_result_that_other_major_versions_made_is_named_and_stays(lesson, go, planned, runs):
    go(lesson)
    path = runs / "lesson/aside/latest/done.json"
    done = json.loads(path.read_text())
    done["libraries"] |= {"torch": "1.13.1", "tokenizers": "0.1", "faiss-cpu": "0.5"}
    path.write_text(json.dumps(done))
    assert planned(lesson)["aside"][:1] == ("SKIP",) and planned(lesson)["teacher"] == ("SKIP",)
    assert "made with torch 1.13.1" in planned(lesson)["aside"][1]


def test_a_new_version_of_a_stage_is_why_it_runs(lesson, monkeypatch, go, planned):
    go(lesson)
    monkeypatch.setattr(light_stages, "REGISTRY", [replace(stage, version=2) for stage in light_stages.REGISTRY])
    assert planned(lesson)["aside"] == ("RUN", "light.teach has a new version that gives other results: 1 → 2")


@pytest.fixture
def machine(monkeypatch):
    def computes_in(precision):
        monkeypatch.setattr("bertrelay.device.computes_in_bf16", lambda *_: precision == "bf16")

    return computes_in


@pytest.fixture
def computing(monkeypatch):
    """The precisions in which stages of kind light.teach compute; they write nothing else."""
    seen = []

    def teach(settings, context):
        seen.append(context.precision(settings.precision))
        return {}

    monkeypatch.setattr(light_stages, "teach", teach)
    return seen


@pytest.mark.parametrize(("first", "second"), [("bf16", "fp32"), ("fp32", "bf16")])
@pytest.mark.usefixtures("computing")
def test_a_result_in_auto_is_the_same_on_a_machine_of_another_precision(
    lesson, machine, first, second, go, planned, runs
):
    machine(first)
    go(lesson, only=["aside"])
    machine(second)
    assert planned(lesson)["aside"] == ("SKIP",)
    done = json.loads((runs / "lesson/aside/latest/done.json").read_text())
    assert done["parts"]["precision"] == "auto" and done["precision"] == first
    assert planned(lesson, f"aside.precision={first}")["aside"] == ("RUN", f'aside.precision: "auto" → "{first}"')


def test_an_unfinished_stage_resumes_in_the_precision_in_which_it_began(
    lesson, runs, machine, monkeypatch, go, planned, computing
):
    """Once it has left some work to resume from."""

    def stopped(settings, context):
        light_stages.teach(settings, context)
        raise WorkError("stopped")

    machine("bf16")
    [stage] = [stage for stage in light_stages.REGISTRY if stage.kind == "light.teach"]
    with monkeypatch.context() as killing:
        killing.setattr(type(stage), "load_run", lambda _: stopped)
        with pytest.raises(WorkError):
            go(lesson, only=["aside"])
        machine("fp32")
        assert planned(lesson)["aside"] == ("RUN", "first time")
        with pytest.raises(WorkError):
            go(lesson, only=["aside"])
    [partial] = (runs / "lesson/aside").glob("*.partial")
    (partial / "work/checkpoint").write_text("half")
    machine("bf16")
    assert planned(lesson)["aside"] == ("RESUME", "started and not finished")
    go(lesson, only=["aside"])
    assert computing == ["bf16", "fp32", "fp32"]
    assert read_done(runs / "lesson/aside/latest").precision == "fp32"
    go(lesson, only=["aside"], force=["aside"])
    assert computing[-1] == "bf16"


@pytest.mark.usefixtures("computing")
def test_what_began_in_a_precision_that_this_machine_has_not_is_an_error_that_says_what_to_do(
    lesson, runs, machine, monkeypatch, go
):
    machine("bf16")
    monkeypatch.setattr(runner, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(lesson, only=["aside"])
    [partial] = (runs / "lesson/aside").glob("*.partial")
    (partial / "model").touch()
    monkeypatch.setattr("bertrelay.device._is_supported", lambda precision, _: precision == "fp32")
    with pytest.raises(RequestError, match=r"aside.* a machine that computes in bf16, in which .* with --force"):
        go(lesson, only=["aside"])


def test_a_mean_over_seeds_is_of_one_precision(lesson, machine, go, computing, capfd):
    machine("bf16")
    go(lesson, "seeds=[1]", only=["aside"])
    machine("fp32")
    assert "aside" not in go(lesson, "seeds=[1, 2]", only=["aside"]).summary
    assert computing == ["bf16", "fp32"]
    assert "aside: no mean over seeds, because their results differ in precision" in capfd.readouterr().err


def test_seeds_are_planned_each_for_itself(lesson, go, planned):
    go(lesson, "seeds=[1, 2]")
    found = planned(lesson, "seeds=[1, 2, 3]", "student.epochs=2")
    assert found["teacher (seed 2)"] == ("SKIP",)
    assert found["teacher (seed 3)"] == ("RUN", "first time")
    assert found["student (seed 2)"] == ("RUN", "student.epochs: 1 → 2")


@pytest.mark.parametrize(
    ("files", "error_text"),
    [
        ({}, r"\[vectors\] model: expected a model folder with a config\.json, found none in .*/given"),
        ({"model/config.json": "{}"}, r"found none in .*/given; give .*/given/model"),
        (
            {"config.json": '{"architectures": ["BertForTokenClassification"]}'},
            r"\[vectors\] model: expected a sentence encoder, found in .*/given a tagger of entities; .* ner tag",
        ),
        ({"config.json": "{"}, r"\[vectors\] model: .*expected JSON"),
    ],
)
def test_a_folder_that_is_no_model_of_the_kind_is_found_by_the_plan(tmp_path, files, error_text):
    (tmp_path / "given").mkdir()
    for name, content in files.items():
        (tmp_path / "given" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "given" / name).write_text(content)
    (tmp_path / "texts.txt").write_text("a\n")
    recipe = tmp_path / "a.toml"
    recipe.write_text('[vectors]\nuses = "bertrelay.encode"\nmodel = "./given"\nsentences = { path = "texts.txt" }\n')
    with pytest.raises(RequestError, match=error_text):
        make_plan(read_recipe(str(recipe), REGISTRY), RunOptions(runs=tmp_path / "runs"))


def test_a_missing_input_names_the_nearest_file(tmp_path):
    (tmp_path / "texts.txt").write_text("a\n")
    (tmp_path / "given").mkdir()
    (tmp_path / "given/config.json").write_text("{}")
    recipe = tmp_path / "a.toml"
    recipe.write_text('[vectors]\nuses = "bertrelay.encode"\nmodel = "./given"\nsentences = { path = "text.txt" }\n')
    with pytest.raises(RequestError, match=r"found neither at .*text\.txt; did you mean .*/texts\.txt\?"):
        make_plan(read_recipe(str(recipe), REGISTRY), RunOptions(runs=tmp_path / "runs"))


def test_a_model_that_no_stage_writes_is_found_before_the_stage_has_run(lesson, planned):
    with pytest.raises(RequestError, match=r"^\[student\] teacher: found @teacher/modell; .* write @teacher/model$"):
        planned(lesson, "student.teacher=@teacher/modell")


STUDENT = """
[s]
uses = "students.distill"
teacher = "./given"
base = "./given"
student_prompt = {prompt}
parallel = [{source}]
"""
FILES_HERE = 'english = "a.txt", other = "a.txt", language = "de"'


@pytest.mark.parametrize(
    ("prompt", "source", "error_text"),
    [
        ('"query: "', FILES_HERE, r"\[s\] student_prompt: .* found 'query: '; for any text write { text = 'query: ' }"),
        (
            '"qery"',
            FILES_HERE,
            r"\[s\] student_prompt: expected one of the model's prompts query, passage, found 'qery'",
        ),
        (
            '"query"',
            'path = "a.tsv", english = "eng", others = { de = "de" }',
            r"\[s\] parallel\[0\]: .*a\.tsv has no column 'eng'\. .*\(en, de among them\)\. Did you mean 'en'\?",
        ),
        (
            '"query"',
            'english = "a.tsv", other = "a.tsv", language = "de", column = 2',
            r"\[s\] parallel\[0\]: .*a\.tsv has no column 2: it has 2, counted from 0",
        ),
        (
            '"query"',
            FILES_HERE + "}]\nretained = [{ path = 'a.tsv', columns = ['text']",
            r"\[s\] retained\[0\]: .*'text'",
        ),
    ],
)
def test_prompts_and_columns_that_are_not_there_are_found_by_the_plan(tmp_path, prompt, source, error_text):
    (tmp_path / "given").mkdir()
    (tmp_path / "given/config.json").write_text("{}")
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    (tmp_path / "given/config_sentence_transformers.json").write_text(json.dumps(prompts))
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "a.tsv").write_text("en\tde\nYes\tJa\n")
    recipe = tmp_path / "a.toml"
    recipe.write_text(STUDENT.replace("{prompt}", prompt).replace("{source}", f"{{ {source} }}"))
    with pytest.raises(RequestError, match=error_text):
        make_plan(read_recipe(str(recipe), REGISTRY), RunOptions(runs=tmp_path / "runs"))
