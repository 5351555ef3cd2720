"""Every kind of stage that a recipe can use."""

from bertrelay.stage import Stage

REGISTRY = (
    Stage(
        kind="samples.write",
        version=1,
        settings="pipelines.samples.settings:SampleSettings",
        run="pipelines.samples.stage:run",
        summary="writes sample data of every kind, made by the project's own generators",
    ),
    Stage(
        kind="samples.papers",
        version=1,
        settings="pipelines.samples.settings:PaperSettings",
        run="pipelines.samples.papers_stage:run",
        summary="writes abstracts of made-up biomedical papers",
    ),
    Stage(
        kind="bertrelay.encode",
        version=1,
        settings="bertrelay.encode_settings:EncodeSettings",
        run="bertrelay.vector_files:run",
        summary="writes the vector of every sentence of a table",
    ),
    Stage(
        kind="teachers.train",
        version=2,
        settings="teachers.settings:TrainSettings",
        run="teachers.train:run",
        summary="trains an English sentence encoder on pairs or triplets",
    ),
    Stage(
        kind="teachers.evaluate",
        version=1,
        settings="teachers.settings:EvaluateSettings",
        run="teachers.evaluation.stage:run",
        summary="scores an English sentence encoder on similarity test sets",
    ),
    Stage(
        kind="students.distill",
        version=2,
        settings="students.settings:DistillSettings",
        run="students.distill:run",
        summary="teaches a multilingual student to stand where its teacher stands",
    ),
    Stage(
        kind="students.evaluate",
        version=1,
        settings="students.settings:EvaluateSettings",
        run="students.evaluation:run",
        summary="scores a multilingual student: translation accuracy, distance to the teacher, similarity",
    ),
    Stage(
        kind="students.index",
        version=1,
        settings="students.search_settings:IndexSettings",
        run="students.index:run",
        summary="builds an index of a corpus, for searching it with queries in any language",
    ),
    Stage(
        kind="students.mine",
        version=1,
        settings="students.mining_settings:MineSettings",
        run="students.mining:run",
        summary="finds the sentences of two tables that translate one another",
    ),
    Stage(
        kind="students.shrink",
        version=1,
        settings="students.shrink_settings:ShrinkSettings",
        run="students.shrink:run",
        summary="makes a model smaller: vocabulary, layers, dimensions; size, speed and scores before and after",
    ),
    Stage(
        kind="domain.pretrain",
        version=1,
        settings="domain.pretraining.settings:PretrainSettings",
        run="domain.pretraining.train:run",
        summary="goes on training a BERT on documents: masked words and next sentences",
    ),
)
