"""The recipes multilingual-files, trimmed-files and compact-files to their ends, with tiny models."""

import gzip
from itertools import product

from huggingface_hub import ModelCard

from bertrelay.evaluation import statistics
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from pipelines.run.store import read_done

KOREAN = {
    "The old dog": "늙은 개가",
    "A small child": "작은 아이가",
    "Her brother": "그녀의 오빠가",
    "My friend": "내 친구가",
    "sees": "본다",
    "follows": "따라간다",
    "likes": "좋아한다",
    "hears": "듣는다",
    "in the park": "공원에서",
    "near the river": "강가에서",
    "at the station": "역에서",
    "on the beach": "해변에서",
    "a bird": "새를",
    "two cats": "고양이 두 마리를",
    "an old car": "낡은 자동차를",
}
WORDS = list(KOREAN)
ENGLISH = list(product(WORDS[:4], WORDS[4:8], WORDS[12:], WORDS[8:12]))  # who does what to whom, and where
PAIRS = [
    (f"{who} {does} {whom} {where}.", f"{KOREAN[who]} {KOREAN[where]} {KOREAN[whom]} {KOREAN[does]}.")
    for who, does, whom, where in ENGLISH
]


def write_data(folder):
    """A catalogue, and test sets in the names of those that the recipe knows."""
    for inner in ("share/locale/ko/LC_MESSAGES", "data/parallel/tatoeba", "data/sts/stsb"):
        (folder / inner).mkdir(parents=True)
    messages = "".join(f'msgid "{english}"\nmsgstr "{korean}"\n\n' for english, korean in PAIRS[::2])
    (folder / "share/locale/ko/LC_MESSAGES/program.po").write_text(messages, encoding="utf-8")
    for place, code in enumerate(("eng", "kor")):
        lines = "".join(f"{pair[place]}\n" for pair in PAIRS[1:80:2])
        (folder / f"data/parallel/tatoeba/tatoeba.kor-eng.{code}").write_text(lines, encoding="utf-8")
    with gzip.open(folder / "data/sts/stsb/stsb-en-test.csv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{PAIRS[row][0]},{PAIRS[row + 1][0]},{row % 6}\n" for row in range(40))


def test_the_students_have_scores_cards_and_their_teachers_space(tiny_encoder, call, tmp_path, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    english, korean = zip(*PAIRS, strict=True)
    other = [f"прочий текст {row} другого языка" for row in range(60)]  # whose pieces are trimmed
    tiny_encoder("bert", english, normalize=True).save(tmp_path / "teacher")
    tiny_encoder("xlm-roberta", [*english, *korean, *other], sizes={"max_position_embeddings": 80}).save(
        tmp_path / "base"
    )
    changes = {
        "multilingual-files": [
            "vars.teacher=teacher",
            "vars.base=base",
            'vars.own=[{path="share/locale", languages="${languages}"}]',
            "vars.minutes=0.02",
            "student.frozen_layers=1",
            "student.dev_sentences=10",
        ],
        "trimmed-files": ["vars.text=share/locale"],
        "compact-files": [
            "vars.parent=runs/multilingual-files/student/latest/model",
            "vars.text=share/locale",
            "student.layers=1",
            "student.intermediate_size=16",
            "student.epochs=1",
            "student.dev_sentences=10",
        ],
    }
    for recipe, values in changes.items():
        values += ["vars.data=data", 'vars.languages=["ko"]']
        call("run", recipe, *(word for value in values for word in ("--set", value)))

    def folder(stage, recipe="multilingual-files"):
        return tmp_path / "runs" / recipe / stage / "latest"

    folders = {"student": folder("student"), "trimmed": folder("trimmed", "trimmed-files")}
    folders["compact"] = folder("student", "compact-files")
    models = {name: SentenceEncoder.load(each / "model") for name, each in folders.items()}
    assert models["compact"].backbone.config.intermediate_size == 16
    digests = {stage: encoder_digest(model) for stage, model in models.items()}
    teacher = encoder_digest(SentenceEncoder.load(tmp_path / "teacher"))
    assert models["student"].spaces == (teacher,)
    assert models["trimmed"].spaces == models["compact"].spaces == (digests["student"], teacher)
    vocabularies = [len(models[stage].tokenizer) for stage in ("student", "trimmed", "compact")]
    assert vocabularies[0] > vocabularies[1] >= vocabularies[2]
    trimmed = read_done(folders["trimmed"]).metrics
    assert trimmed["cosine_min"] > 1 - 1e-4 and {"coverage/en", "coverage/ko"} < trimmed.keys()
    found = read_done(folder("tatoeba")).metrics
    assert {"recall_at_10_ratio/ko", "recall_at_10_ratio/ko_low", "translation_accuracy/ko-en"} < found.keys()
    exported = read_done(folder("compact", "compact-files")).metrics
    compared = ("size_mb", "sentences_per_second", "sts/STSb-en/spearman_cosine", "translation_accuracy/ko-en")
    assert {f"{who}/{name}" for who in ("parent", "torch", "onnx") for name in compared} < exported.keys()
    assert (folder("compact", "compact-files") / "model/onnx/model.onnx").is_file()
    for recipe, name in (("multilingual-files", ""), ("trimmed-files", "-trimmed")):
        card = ModelCard.load(folder("card", recipe) / "model/README.md")
        assert card.data.model_name == f"someone/multilingual-mpnet-small{name}" and card.data.language == ["en", "ko"]
        assert "Weights are chosen by sentences of other sources as well: " in card.text
