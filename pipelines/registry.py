"""Every kind of stage that a recipe can use: the project's own, and those of other installed packages."""

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points

from bertrelay.errors import RequestError
from bertrelay.stage import Stage

ENTRY_POINTS = "bertrelay.stages"
"""Group of entry points by which a package declares a `Stage`, or a sequence of them."""

PATIENTS = "domain.clinical"
"""Its stages read tables of patients."""

SBERT_PAPER = "teachers.sbert_paper"
"""Everything that only repeats the paper. Nothing else imports it, so it can be removed together with these lines."""
PROTOCOLS = f"{SBERT_PAPER}.settings:ProtocolSettings", f"{SBERT_PAPER}.protocols:evaluate"
"""The settings and the work of `bertrelay evaluate`."""

STAGES = {
    "pipelines.samples": [
        ("samples.write", 2, "settings:SampleSettings", "sentence_files:run", ""),
        ("samples.papers", 2, "settings:PaperSettings", "papers:run_papers", ""),
        ("samples.hospital", 3, "settings:HospitalSettings", "hospital:run", ""),
        ("samples.entities", 1, "settings:EntitySettings", "papers:run_entities", ""),
        ("samples.questions", 1, "settings:QuestionSettings", "papers:run_questions", ""),
        ("samples.bioasq", 1, "settings:BioasqSampleSettings", "papers:run_bioasq", ""),
        ("samples.sbert-paper", 3, "settings:SbertPaperSettings", "sentence_files:run_sbert_paper", ""),
    ],
    "pipelines.cards": [
        ("report.card", 3, "settings:CardSettings", "card:run", ""),
    ],
    "bertrelay": [
        ("bertrelay.encode", 2, "encode_stage:EncodeSettings", "encode_stage:run", ""),
    ],
    "teachers": [
        ("teachers.train", 6, "settings:TrainSettings", "train:run", "teachers"),
        ("teachers.evaluate", 2, "evaluation.settings:StsSettings", "evaluation.stage:run_sts", "teachers"),
        ("teachers.cross-encoder", 4, "pairs.settings:CrossEncoderSettings", "pairs.train:run", "teachers"),
        ("teachers.rerank", 1, "pairs.settings:RerankSettings", "pairs.rerank:run", ""),
    ],
    SBERT_PAPER: [
        ("teachers.poly-encoder", 3, "settings:PolyEncoderSettings", "poly_encoder:run", SBERT_PAPER),
        ("teachers.bilstm", 3, "settings:BiLstmSettings", "bilstm:run", SBERT_PAPER),
        ("teachers.protocols", 4, "settings:ProtocolSettings", "protocols:run", SBERT_PAPER),
        ("teachers.facets", 3, "settings:FacetSettings", "facets:run", SBERT_PAPER),
        ("teachers.ablation", 3, "settings:AblationSettings", "ablation:run", SBERT_PAPER),
    ],
    "students": [
        ("students.distill", 21, "distill.settings:DistillSettings", "distill.train:run", "students"),
        ("students.evaluate", 6, "evaluate.settings:EvaluateSettings", "evaluate.stage:run", "students"),
        ("students.compare", 2, "evaluate.settings:CompareSettings", "evaluate.compare:run", "students"),
        ("students.split", 1, "parallel.settings:SplitSettings", "parallel.hold_out:run", ""),
        ("students.index", 5, "searching.settings:IndexSettings", "searching.index:run", ""),
        ("students.mine", 2, "mining.settings:MineSettings", "mining.bitext:run", ""),
        ("students.mine-negatives", 4, "mining.settings:NegativeSettings", "mining.negatives:run", ""),
        ("students.export", 6, "compress.settings:ExportSettings", "compress.export:run", "students"),
        ("students.shrink", 9, "compress.settings:ShrinkSettings", "compress.shrink:run", "students"),
    ],
    "domain.pretraining": [
        ("domain.pretrain", 8, "settings:PretrainSettings", "train:run", "domain:pretraining"),
    ],
    "domain": [
        ("domain.terms", 5, "terms:TermsSettings", "terms:run", "domain:terms"),
    ],
    "domain.biomedical.ner": [
        ("domain.ner", 10, "settings:NerSettings", "train:run", "domain:entities"),
        ("domain.ner-evaluate", 8, "settings:NerEvaluateSettings", "evaluate:run", "domain:entities"),
        ("domain.ner-tag", 6, "settings:TagSettings", "predict_files:run", ""),
    ],
    "domain.biomedical.linking": [
        ("domain.linker", 1, "settings:LinkerSettings", "train:run", "domain:links"),
        ("domain.linking-evaluate", 1, "settings:LinkEvaluateSettings", "evaluate:run", "domain:links"),
        ("domain.synonym-pairs", 1, "settings:SynonymPairsSettings", "pairs:run", ""),
    ],
    "domain.biomedical.relations": [
        ("domain.relations", 1, "settings:RelationSettings", "train:run", "domain:relations"),
        ("domain.relations-evaluate", 1, "settings:RelationEvaluateSettings", "evaluate:run", "domain:relations"),
    ],
    "domain.biomedical.qa": [
        ("domain.questions", 5, "settings:QuestionsSettings", "split:run", ""),
        ("domain.qa-answer", 5, "settings:AnswerSettings", "predict_files:run", ""),
        ("domain.qa-bioasq", 1, "settings:BioasqSettings", "predict_bioasq:run", ""),
        ("domain.qa", 10, "settings:QaSettings", "train:run", ""),
        ("domain.qa-evaluate", 8, "settings:QaEvaluateSettings", "evaluate:run", "domain:answers"),
    ],
    PATIENTS: [
        ("domain.cohort", 10, "settings:CohortSettings", "cohort:run", ""),
        ("domain.audit", 5, "settings:AuditSettings", "leakage:run", ""),
        ("domain.notes", 12, "settings:NotesSettings", "notes:run", ""),
        ("domain.readmission", 14, "settings:ReadmissionSettings", "train:run", "domain:outcomes"),
        ("domain.outcome", 13, "settings:OutcomeSettings", "train:run_outcome", "domain:outcomes"),
        ("domain.outcome-evaluate", 2, "settings:OutcomeEvaluateSettings", "evaluate:run", "domain:outcomes"),
    ],
}
"""By package: kind, version, settings and work (`module:name` in the package), and where its metrics are declared."""

VERDICTS = {
    **dict.fromkeys(("students.distill", "students.evaluate"), "students.evaluate.verdicts:of_student"),
    **dict.fromkeys(("domain.ner", "domain.ner-evaluate"), "domain.verdicts:of_entities"),
    **dict.fromkeys(("domain.qa", "domain.qa-evaluate"), "domain.verdicts:of_answers"),
    **dict.fromkeys(("domain.readmission", "domain.outcome"), "domain.verdicts:of_outcome"),
    "domain.outcome-evaluate": "domain.verdicts:of_evaluated_outcome",
}
"""By kind: what judges the model that it trained or evaluated."""

PROJECT_STAGES = tuple(
    Stage(
        kind,
        version,
        f"{package}.{settings}",
        f"{package}.{run}",
        metrics,
        sensitive=package == PATIENTS,
        verdict=VERDICTS.get(kind, ""),
    )
    for package, stages in STAGES.items()
    for kind, version, settings, run, metrics in stages
)


def stages_of_packages(taken: Sequence[Stage] = PROJECT_STAGES) -> Iterator[Stage]:
    """Yields the stages that installed packages declare under ENTRY_POINTS.

    Raises RequestError for an entry point that cannot be loaded or is no stage, and for a kind that is taken.
    """
    kinds = {stage.kind: "bertrelay" for stage in taken}
    for point in entry_points(group=ENTRY_POINTS):
        for stage in _load(point):
            if stage.kind in kinds:
                raise _unusable(point, f"a stage {stage.kind!r}, which {kinds[stage.kind]} has already")
            kinds[stage.kind] = point.value
            yield stage


def _load(point: EntryPoint) -> list[Stage]:
    try:
        declared = point.load()
    except Exception as error:  # whatever the other package does while it is imported
        raise _unusable(point, f"{type(error).__name__}: {error}") from error
    stages = [declared] if isinstance(declared, Stage) else declared
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, Stage) for stage in stages):
        raise _unusable(point, f"{type(declared).__name__}")
    return list(stages)


def _unusable(point: EntryPoint, fault: str) -> RequestError:
    package = point.dist.name if point.dist else point.value
    return RequestError(
        f"package {package}: expected stages of bertrelay in {point.value} (entry point {point.name!r} of "
        f"{ENTRY_POINTS}), found {fault}. Update the package, or uninstall it."
    )


REGISTRY = (*PROJECT_STAGES, *stages_of_packages())
