import json
import os
import platform
import re
import resource
import shutil
import signal
import statistics
import sys

import light_stages
import pytest

from bertrelay.errors import RequestError, WorkError
from bertrelay.files import write_json
from bertrelay.fingerprint import Digests
from bertrelay.privacy import current_umask
from bertrelay.stage import Stage
from pipelines.run.errors import disk_explained
from pipelines.run.store import ATTEMPT, begin, finish, read_done

LESSON = """
[student]
uses = "light.learn"
teacher = "@teacher/model"

[teacher]
uses = "light.teach"
epochs = 3
"""
SLOW = """
[slow]
uses = "light.slow"
"""


def actions(outcome):
    return {each.step.label: each.action.value for each in outcome.plan.steps}


def test_a_finished_folder_says_all_about_itself(write_recipe, runs, go):
    go(write_recipe(LESSON))
    folder = runs / "lesson/teacher/latest"
    assert folder.is_symlink()
    assert len(str(folder.readlink())) == 12
    done = json.loads((folder / "done.json").read_text())
    assert done["parts"]["epochs"] == 3
    assert done["metrics"] == {"score": 3, "unmeasured": None} == json.loads((folder / "metrics.json").read_text())
    assert set(done["outputs"]) == {"fingerprint.json", "metrics.json", "model/weights.txt"}
    assert done["outputs"]["model/weights.txt"]["size"] == 3
    assert {"python", "torch", "bertrelay"} <= set(done["libraries"])
    assert done["started"] <= done["finished"]
    assert not list(runs.glob("lesson/*/*.partial"))


def test_a_second_run_skips_all_and_links_what_it_skipped(write_recipe, go, runs):
    path, latest = write_recipe(LESSON), runs / "lesson/teacher/latest"
    go(path)
    first = latest.readlink()
    go(path, "teacher.epochs=4")
    assert latest.readlink() != first
    assert actions(go(path)) == {"teacher": "SKIP", "student": "SKIP"}
    assert latest.readlink() == first
    whole = latest.resolve()
    whole.rename(whole.with_name(whole.name + ".partial"))  # as if killed just before the renaming
    assert actions(go(path)) == {"teacher": "SKIP", "student": "SKIP"}


def test_a_run_folder_that_was_copied_without_links_is_refused_with_what_to_remove(write_recipe, go, runs, tmp_path):
    path = write_recipe(LESSON)
    go(path)
    shutil.copytree(runs, tmp_path / "copy")
    shutil.rmtree(runs)
    (tmp_path / "copy").rename(runs)
    with pytest.raises(
        RequestError, match=r"expected a link .*/student/latest, .*/teacher/latest. Remove them"
    ) as error:
        go(path)
    for folder in re.findall(r"/\S+/latest", str(error.value)):
        shutil.rmtree(folder)
    assert set(actions(go(path)).values()) == {"SKIP"}


def test_force_makes_a_whole_result_anew_and_only_leaves_the_rest_alone(write_recipe, go, runs):
    path = write_recipe(LESSON)
    assert actions(go(path, only=["teacher"])) == {"teacher": "RUN"}
    assert not (runs / "lesson/student").exists()
    mark = runs / "lesson/teacher/latest/mark"
    mark.touch()
    assert actions(go(path, force=["teacher"])) == {"teacher": "RUN", "student": "RUN"}
    assert not mark.exists()
    whole = mark.parent.resolve()
    removed = whole.rename(whole.with_name(whole.name + ".discarded"))  # as if killed while a result is removed
    assert actions(go(path)) == {"teacher": "RUN", "student": "SKIP"} and not removed.exists()


def test_a_result_says_why_it_was_made(write_recipe, go, runs):
    path, made = write_recipe(LESSON), runs / "lesson/teacher/latest"
    go(path)
    assert read_done(made).reasons == ["first time"]
    go(path, "teacher.epochs=7")
    assert read_done(made).reasons == ["teacher.epochs: 3 → 7"]
    facts = json.loads((made / "done.json").read_text())
    del facts["reasons"]  # as a result of before has it
    (made / "done.json").write_text(json.dumps(facts))
    assert actions(go(path, "teacher.epochs=7"))["teacher"] == "SKIP"


def test_metrics_of_repeated_stages_are_summed_up_over_seeds(write_recipe, runs, go):
    go(write_recipe("seeds = [1, 2, 6]\n" + LESSON))
    summary = json.loads((runs / "lesson/metrics.json").read_text())
    scores = [3 + seed for seed in (1, 2, 6)]
    assert summary["teacher"]["score"] == statistics.mean(scores)
    assert summary["teacher"]["score_deviation"] == pytest.approx(statistics.stdev(scores))
    assert summary["teacher"]["unmeasured"] is None
    assert summary["student"]["score"] == 6
    assert (runs / "lesson/student/latest").readlink() == (runs / "lesson/student/latest-seed-1").readlink()
    assert (runs / "lesson/student/latest-seed-6/model/weights.txt").read_text() == "learnt from 3 6"


@pytest.mark.promise("A mean over seeds is over results of equal settings, one for each", about="skip")
def test_no_mean_is_taken_over_results_of_other_settings_or_of_some_seeds_alone(write_recipe, go, monkeypatch, capfd):
    path, teach = write_recipe("seeds = [1, 2]\n" + LESSON + SLOW), light_stages.teach

    def stopped_at_last_seed(settings, context):
        if settings.seed > 1:
            raise WorkError("stopped")
        return teach(settings, context)

    go(path)
    monkeypatch.setattr(light_stages, "teach", stopped_at_last_seed)
    with pytest.raises(WorkError):
        go(path, "teacher.epochs=101")
    assert "teacher" not in go(path, "teacher.epochs=101", only=["slow"]).summary
    assert "teacher: no mean over seeds, because their results differ in epochs" in capfd.readouterr().err
    go(path)
    assert go(path, only=["slow"]).summary["teacher"]["score"] == 4.5
    assert "teacher" not in go(path, "seeds=[1, 2, 3]", only=["slow"]).summary
    assert "teacher: no mean over seeds, because 1 of 3 have no current result" in capfd.readouterr().err


@pytest.mark.promise("An input that changed since the plan ends the run before its stage", about="skip")
def test_an_input_that_changed_before_its_stage_ends_the_run(write_recipe, tmp_path, go, monkeypatch):
    path = write_recipe(SLOW + '[count]\nuses = "light.teach"\ndata = "data.txt"\n')
    data = tmp_path / "data.txt"

    def edit(*_):
        data.write_text("edited")
        return {}

    monkeypatch.setattr(light_stages, "teach", lambda *_: {"characters": len(data.read_text())})
    monkeypatch.setattr(light_stages, "slow", edit)
    data.write_text("old")
    with pytest.raises(WorkError, match=r"\[count\] .*data.txt changed while the run was under way; run again"):
        go(path)
    data.write_text("old")
    outcome = go(path)
    assert (actions(outcome)["count"], outcome.results["count", None].metrics) == ("RUN", {"characters": 3})
    whole = write_recipe('[count]\nuses = "light.teach"\ndata = "."\n', "whole.toml")
    assert actions(go(whole)) == {"count": "RUN"}  # though the folder of runs is in it
    data.write_text("new")
    monkeypatch.setattr(Stage, "load_run", lambda _: edit() or edit)
    with pytest.raises(WorkError, match=r"data\.txt changed while the run"):  # while the stage loads, too
        go(path, only=["count"])


@pytest.mark.promise("An input that changes while it is read leaves no result", about="skip")
def test_an_input_that_changes_while_its_stage_is_at_work_leaves_no_result_under_either_fingerprint(
    write_recipe, tmp_path, go, runs, monkeypatch
):
    path, data = write_recipe('[count]\nuses = "light.teach"\ndata = "data.txt"\n'), tmp_path / "data.txt"
    data.write_text("old")
    monkeypatch.setattr(light_stages, "teach", lambda *_: data.write_text("edited") and {})
    with pytest.raises(WorkError, match=r"\[count\] .*data\.txt changed while"):
        go(path)
    assert not list(runs.rglob("done.json"))
    monkeypatch.setattr(light_stages, "teach", lambda *_: {"characters": len(data.read_text())})
    assert go(path).results["count", None].metrics == {"characters": 6}


def test_a_report_is_written_when_something_ran_or_it_is_gone(write_recipe, go, runs, monkeypatch):
    path, written = write_recipe(LESSON), []

    def report(folder):
        written.append(folder.name)
        (folder / "report.html").touch()

    monkeypatch.setattr(sys.modules["pipelines.report.page"], "write_report", report)
    for _ in range(2):
        go(path)
    assert written == ["lesson"]
    (runs / "lesson/report.html").unlink()
    go(path)
    assert len(written) == 2


def test_a_reference_to_what_a_stage_did_not_write_names_what_it_wrote(write_recipe, go):
    with pytest.raises(RequestError) as error:
        go(write_recipe(LESSON), "student.teacher=@teacher/model/half")
    assert "[student] @teacher/model/half: expected an output of the stage teacher, found none" in str(error.value)
    assert 'did you mean "model"' in str(error.value)


def test_the_revision_is_asked_once_written_down_and_given_to_the_stage(write_recipe, tmp_path, monkeypatch, go):
    path = write_recipe('[t]\nuses = "light.teach"\nbase = "owner/model"\nhub = "owner/data@pinned"')
    asked, given = [], []
    monkeypatch.setattr("pipelines.run.hub.ask_hub", lambda source: asked.append(str(source)) or "5ha")
    monkeypatch.setattr("light_stages.teach", lambda settings, context: given.append(settings) or {})  # noqa: ARG005
    go(path)
    go(path, "t.epochs=2")
    assert asked == ["owner/model"]
    assert json.loads((tmp_path / "lesson.lock").read_text()) == {"model owner/model": "5ha"}
    assert {(settings.base, settings.hub) for settings in given} == {("owner/model@5ha", "owner/data@pinned")}


@pytest.mark.promise("No hub can be reached unless the recipe names one", about="privacy")
def test_a_hub_is_shut_out_unless_the_recipe_names_one(write_recipe, monkeypatch, go):
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    go(write_recipe('[t]\nuses = "light.teach"\nbase = "owner/model@1"'))
    assert "HF_HUB_OFFLINE" not in os.environ
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    go(write_recipe(LESSON))
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # what a user has set stays
    go(write_recipe(LESSON))
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_a_hub_out_of_reach_and_an_offline_hub_are_explained(write_recipe, go, monkeypatch):
    path = write_recipe('[t]\nuses = "light.teach"\nbase = "owner/model"')
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for offline, message in (
        (False, "model owner/model: the hub could not be reached"),
        (True, "pin the revision: owner/model@REVISION"),
    ):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        with pytest.raises(RequestError, match=message):
            go(path)


def test_a_failed_stage_names_itself_and_resumes_from_its_work(write_recipe, go):
    path = write_recipe(SLOW)
    with pytest.raises(WorkError, match=r"^\[slow\] the loss is not finite at step 3$"):
        go(path, "slow.fail=rank 0")
    outcome = go(path)
    assert actions(outcome) == {"slow": "RESUME"}
    assert outcome.results["slow", None].metrics == {"resumed_from": 3}


def test_a_killed_run_resumes_where_it_was(write_recipe, runs, start, go):
    path = write_recipe(SLOW)
    first = start("run", path, "--runs", runs, "--set", "slow.block_at=2")
    assert first.stdout.readline() == f"blocked {first.pid}\n"
    first.kill()
    assert first.wait() == -signal.SIGKILL
    assert not (runs / "lesson/slow/latest").exists()
    outcome = go(path)
    assert actions(outcome) == {"slow": "RESUME"}
    assert outcome.results["slow", None].metrics == {"resumed_from": 2}
    steps = (runs / "lesson/slow/latest/steps-0.txt").read_text().splitlines()
    assert steps == [str(first.pid)] * 2 + [str(os.getpid())]


HINT = ". Leave --force out to resume: with it, slow would restart."


@pytest.mark.parametrize(
    ("number", "code", "options", "hint"),
    [
        (signal.SIGTERM, 143, ["--force", "slow"], HINT),
        (signal.SIGINT, 130, [], ""),
    ],
)
def test_a_signal_stops_with_a_word_and_the_run_resumes(write_recipe, start, number, code, options, hint, go, runs):
    path = write_recipe(SLOW)
    process = start("run", path, "--runs", runs, "--set", "slow.block_at=2", *options)
    process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert err.endswith(f"[slow] stopped by {number.name}; the same command resumes from what is saved{hint}\n")
    assert "Traceback" not in err
    assert actions(go(path)) == {"slow": "RESUME"}


def test_what_a_killed_process_was_writing_is_in_no_result(write_recipe, runs, go, monkeypatch):
    path, teach = write_recipe(LESSON), light_stages.teach

    def killed(_, context):
        with monkeypatch.context() as patched:  # as SIGKILL does: nothing is tidied
            patched.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            patched.setattr("pathlib.Path.unlink", lambda *_, **__: None)
            with pytest.raises(KeyboardInterrupt):
                write_json(context.output / "fingerprint.json", {})
            (context.output / ".scores.tsv.writing").write_text("half")
        raise WorkError("stopped")

    monkeypatch.setattr(light_stages, "teach", killed)
    with pytest.raises(WorkError):
        go(path)
    assert list(runs.rglob(".fingerprint.json.*"))
    monkeypatch.setattr(light_stages, "teach", teach)
    go(path)
    assert not [name for name in runs.rglob(".*") if name.name.startswith((".fingerprint", ".scores"))]


def test_what_is_remembered_of_files_is_hidden_once_a_run_is_sensitive(write_recipe, tmp_path, runs, go):
    (tmp_path / "data.txt").write_text("text")
    count = '[count]\nuses = "light.teach"\ndata = "data.txt"\n'
    memory = runs / ".cache" / "digests.json"
    for text, mode in ((count, 0o644), (count + "sensitive = true\n", 0o600), (count, 0o600)):
        go(write_recipe(text))
        assert memory.stat().st_mode & 0o777 == mode & ~current_umask()


def test_seconds_are_those_of_every_attempt_the_killed_ones_until_the_last_file_they_wrote(tmp_path):
    partial = begin(tmp_path / "whole", {})
    attempt = json.loads((partial / ATTEMPT).read_text())
    (partial / ATTEMPT).write_text(json.dumps({**attempt, "seconds_before": 5, "began": attempt["began"] - 100}))
    for path in partial.rglob("*"):
        os.utime(path, (attempt["began"] - 60,) * 2)
    begin(tmp_path / "whole", {})
    finish(tmp_path / "whole", {}, {}, Digests())
    done = read_done(tmp_path / "whole")
    assert 5 + 40 <= done.seconds < 5 + 40 + 30
    assert done.outputs.keys() == {"fingerprint.json", "metrics.json"}


def test_a_second_runner_is_shown_who_holds_the_folder(write_recipe, runs, start, go):
    path = write_recipe(SLOW)
    first = start("run", path, "--runs", runs, "--set", "slow.block_at=1")
    first.stdout.readline()
    with pytest.raises(RequestError, match=rf"process {first.pid} on {platform.node()}, since "):
        go(path)
    first.kill()
    first.wait()
    assert actions(go(path)) == {"slow": "RESUME"}  # the system lets go of a killed runner's lock


def test_a_full_disk_is_explained_and_the_run_resumes_when_there_is_space(write_recipe, runs, go):
    path = write_recipe(SLOW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(WorkError, match=rf"^\[slow\] no space left to write {runs}"):
            go(path, "slow.megabytes=1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert actions(go(path, "slow.megabytes=1")) == {"slow": "RESUME"}


def test_a_full_disk_that_a_library_in_rust_reports_is_known_too(tmp_path):
    with pytest.raises(WorkError, match="no space left"), disk_explained(tmp_path):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_a_folder_that_may_not_be_written_is_explained(write_recipe, start, tmp_path):
    path, closed = write_recipe(SLOW), tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.getuid() and parent.name.startswith(("test_", "pytest-", "popen-")):
            parent.chmod(0o755)
    unprivileged = ["--user", "65534"] if os.getuid() == 0 else []
    process = start(*unprivileged, "run", path, "--runs", closed / "runs")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert f"expected a place that may be read and written, found none: {closed}/runs" in err
    assert "--runs DIR" in err
    assert "Traceback" not in err


def test_an_unforeseen_error_shows_no_text_of_the_data(write_recipe, runs, bertrelay):
    arguments = ["run", write_recipe(SLOW), "--runs", runs, "--set", "slow.fail=unforeseen"]
    code, out, err = bertrelay(*arguments)
    assert code == 1
    assert "patient" not in out + err
    assert "an unforeseen KeyError in" in err
    assert "pipelines/run/runner.py, line" in err  # the last frame of the project's own
    _, _, err = bertrelay(*arguments, "--debug")
    assert "Traceback" in err and "patient" in err
