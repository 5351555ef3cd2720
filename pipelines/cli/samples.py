"""`bertrelay samples`."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.echo import echo


def samples(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; made when it is not there.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another seed, other sentences.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write sample data of every kind, made by the project's own generators; nothing is downloaded.

    Parallel sentences, NLI, STS and triplets, and sentences line by line; papers, marked entities and questions; two
    small hospitals in MIMIC's forms; every data set of the SBERT paper, in its official form.

    For example:

      bertrelay samples my-samples
    """
    import json

    from pipelines.samples.hospital import write_hospitals
    from pipelines.samples.papers import write_entities, write_papers, write_questions
    from pipelines.samples.sbert_paper import FOLDER, write_sbert_paper
    from pipelines.samples.sentences import write_plain_files, write_samples
    from pipelines.samples.settings import EntitySettings, QuestionSettings, SampleSettings, SbertPaperSettings
    from pipelines.trouble import disk_explained

    with disk_explained(folder):
        counts = write_samples(folder, SampleSettings(seed=seed))
        counts |= write_plain_files(folder, seed)
        counts |= write_papers(folder, seed) | write_hospitals(folder, seed)
        counts |= write_entities(folder, EntitySettings(seed=seed))
        counts |= write_questions(folder, QuestionSettings(seed=seed))
        counts[f"{FOLDER}/"] = sum(write_sbert_paper(folder / FOLDER, SbertPaperSettings(seed=seed)).values())
    if as_json:
        echo(json.dumps({"folder": str(folder), "counts": counts}, ensure_ascii=False, indent=2))
        return
    for name, count in counts.items():
        echo(f"{count:>9,}  {name}")
    echo(f"written to {folder}")
