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
        kind="teachers.train",
        version=1,
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
        version=1,
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
)
