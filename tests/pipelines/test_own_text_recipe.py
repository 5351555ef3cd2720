"""The recipe own-text to its end, with tiny models: the student beside its base, its card and its graph."""

from itertools import product

from huggingface_hub import ModelCard

from bertrelay.evaluation import statistics
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from pipelines.run.store import read_done

KOREAN = {
    "The printer": "프린터가",
    "A small sensor": "작은 센서가",
    "The second valve": "두 번째 밸브가",
    "My account": "내 계정이",
    "is blocked": "막혀 있습니다",
    "does not start": "시작되지 않습니다",
    "stops after an hour": "한 시간 뒤에 멈춥니다",
    "in the morning": "아침에",
    "without a message": "메시지 없이",
    "after the update": "업데이트 뒤에",
}
WORDS = list(KOREAN)
PAIRS = [
    (f"{what} {does} {when}.", f"{KOREAN[what]} {KOREAN[when]} {KOREAN[does]}.")
    for what, does, when in product(WORDS[:4], WORDS[4:7], WORDS[7:])
]


def test_the_student_is_beside_its_base_on_held_out_text_and_questions(tiny_encoder, call, tmp_path, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    monkeypatch.chdir(tmp_path)
    english, korean = zip(*PAIRS * 2, strict=True)
    (tmp_path / "en-ko.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    (tmp_path / "faq").mkdir()
    for name, texts in (("questions.txt", korean[:6]), ("entries.txt", english[:12])):
        (tmp_path / "faq" / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (tmp_path / "faq/gold.tsv").write_text("".join(f"{row}\t{row}\n" for row in range(1, 7)))
    tiny_encoder("bert", english, normalize=True).save(tmp_path / "teacher")
    tiny_encoder("xlm-roberta", [*english, *korean], sizes={"max_position_embeddings": 80}).save(tmp_path / "base")
    changes = ["vars.teacher=teacher", "vars.base=base", "vars.parallel=en-ko.tsv", "vars.language=ko", "vars.faq=faq"]
    changes += ["student.frozen_layers=1", "student.dev_sentences=5"]
    call("run", "own-text", *(word for change in changes for word in ("--set", change)))

    def metrics(stage):
        return read_done(tmp_path / "runs/own-text" / stage / "latest").metrics

    parts = [
        (tmp_path / f"runs/own-text/split/latest/{part}/en-ko.tsv").read_text("utf-8") for part in ("train", "test")
    ]
    lines = [set(part.splitlines()) for part in parts]
    assert lines[0] | lines[1] == {"\t".join(pair) for pair in PAIRS} and len(lines[1]) == metrics("split")["test/ko"]
    compared = metrics("test")
    for name in ("translation_accuracy/en-ko", "translation_accuracy/ko-en", "faq/hit_at_1", "faq/mrr"):
        gain = compared[f"model/{name}"] - compared[f"base/{name}"]
        assert abs(compared[f"gain/{name}"] - gain) < 1e-12 and f"gain/{name}_low" in compared
    assert metrics("nearness")["translation_accuracy/ko-en"] == compared["model/translation_accuracy/ko-en"]
    model = tmp_path / "runs/own-text/card/latest/model"
    assert SentenceEncoder.load(model).spaces == (encoder_digest(SentenceEncoder.load(tmp_path / "teacher")),)
    assert ModelCard.load(model / "README.md").data.language == ["en", "ko"]
    assert (tmp_path / "runs/own-text/graph/latest/model/onnx/model.onnx").is_file()
    assert "Beside the base" in (tmp_path / "runs/own-text/report.html").read_text("utf-8")
