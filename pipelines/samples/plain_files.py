"""Plain files of the sample sentences, as the commands that use a model take them: README names them."""

from pathlib import Path

from bertrelay.data.tables import write_tsv
from pipelines.samples.tasks import LANGUAGES, Source, draw_single

FILES = {"english.txt": "en", "german.txt": "de", "korean.txt": "ko"}
SENTENCES = 200
QUESTIONS = 20


def write_plain_files(folder: Path, seed: int) -> dict[str, int]:
    """Writes sentences line by line in three languages, queries, and the lines that are translations; rows by name."""
    folder.mkdir(parents=True, exist_ok=True)
    meanings = [meaning for (meaning,) in draw_single(Source(seed), SENTENCES)]
    lines = {name: [LANGUAGES[language](meaning) for meaning in meanings] for name, language in FILES.items()}
    lines["questions.txt"] = lines["english.txt"][:QUESTIONS]
    for name, sentences in lines.items():
        (folder / name).write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    numbers = range(1, SENTENCES + 1)
    write_tsv(folder / "pairs.tsv", ("source_line", "target_line"), zip(numbers, numbers, strict=True))
    return {name: len(sentences) for name, sentences in lines.items()} | {"pairs.tsv": SENTENCES}
