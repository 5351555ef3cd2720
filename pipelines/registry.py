"""Every kind of stage that a recipe can use."""

from bertrelay.stage import Stage

REGISTRY = (
    Stage("samples.write", 1, "pipelines.samples.settings:SampleSettings", "pipelines.samples.sentences:run"),
    Stage("samples.papers", 1, "pipelines.samples.settings:PaperSettings", "pipelines.samples.papers:run_papers"),
    Stage("samples.hospital", 3, "pipelines.samples.settings:HospitalSettings", "pipelines.samples.hospital:run"),
    Stage("samples.entities", 1, "pipelines.samples.settings:EntitySettings", "pipelines.samples.papers:run_entities"),
    Stage(
        "samples.questions", 1, "pipelines.samples.settings:QuestionSettings", "pipelines.samples.papers:run_questions"
    ),
    Stage(
        "samples.sbert-paper", 2, "pipelines.samples.settings:SbertPaperSettings", "pipelines.samples.sbert_paper:run"
    ),
    Stage("bertrelay.encode", 1, "bertrelay.encoder_settings:EncodeSettings", "bertrelay.encode_files:run"),
    Stage("teachers.train", 2, "teachers.settings:TrainSettings", "teachers.train:run", "teachers"),
    Stage("teachers.evaluate", 1, "teachers.settings:StsSettings", "teachers.evaluation.protocols:run_sts", "teachers"),
    Stage(
        "teachers.protocols",
        3,
        "teachers.evaluation.settings:ProtocolSettings",
        "teachers.evaluation.protocols:run",
        "teachers",
    ),
    Stage(
        "teachers.facets", 3, "teachers.evaluation.settings:FacetSettings", "teachers.evaluation.facets:run", "teachers"
    ),
    Stage(
        "teachers.ablation",
        2,
        "teachers.evaluation.settings:AblationSettings",
        "teachers.evaluation.ablation:run",
        "teachers",
    ),
    Stage(
        "teachers.cross-encoder",
        1,
        "teachers.settings:CrossEncoderSettings",
        "teachers.cross_encoder_train:run",
        "teachers",
    ),
    Stage(
        "teachers.poly-encoder",
        1,
        "teachers.settings:PolyEncoderSettings",
        "teachers.cross_encoder_train:run_poly",
        "teachers",
    ),
    Stage("teachers.bilstm", 1, "teachers.settings:BiLstmSettings", "teachers.baselines.word_vectors:run", "teachers"),
    Stage("teachers.rerank", 1, "teachers.settings:RerankSettings", "teachers.rerank:run"),
    Stage("students.distill", 2, "students.settings:DistillSettings", "students.distill:run", "students"),
    Stage("students.evaluate", 1, "students.settings:EvaluateSettings", "students.evaluate:run", "students"),
    Stage("students.index", 1, "students.search_settings:IndexSettings", "students.index:run"),
    Stage("students.mine", 1, "students.search_settings:MineSettings", "students.bitext:run"),
    Stage("students.shrink", 1, "students.settings:ShrinkSettings", "students.shrinking:run", "students"),
    Stage(
        "domain.pretrain",
        2,
        "domain.pretraining.settings:PretrainSettings",
        "domain.pretraining.train:run",
        "domain:pretraining",
    ),
    Stage("domain.terms", 2, "domain.terms.settings:TermsSettings", "domain.terms.terms:run", "domain:terms"),
    Stage(
        "domain.ner",
        1,
        "domain.biomedical.ner.settings:NerSettings",
        "domain.biomedical.ner.train:run",
        "domain:entities",
    ),
    Stage(
        "domain.ner-evaluate",
        1,
        "domain.biomedical.ner.settings:NerEvaluateSettings",
        "domain.biomedical.ner.evaluate:run",
        "domain:entities",
    ),
    Stage("domain.questions", 1, "domain.biomedical.qa.settings:QuestionsSettings", "domain.biomedical.qa.split:run"),
    Stage("domain.qa-answer", 2, "domain.biomedical.qa.settings:AnswerSettings", "domain.biomedical.qa.answering:run"),
    Stage("domain.qa", 2, "domain.biomedical.qa.settings:QaSettings", "domain.biomedical.qa.train:run"),
    Stage(
        "domain.qa-evaluate",
        2,
        "domain.biomedical.qa.settings:QaEvaluateSettings",
        "domain.biomedical.qa.evaluate:run",
        "domain:answers",
    ),
    Stage("domain.cohort", 3, "domain.clinical.settings:CohortSettings", "domain.clinical.cohort:run", sensitive=True),
    Stage("domain.audit", 1, "domain.clinical.settings:AuditSettings", "domain.clinical.audit:run", sensitive=True),
    Stage("domain.ner-tag", 2, "domain.biomedical.ner.settings:TagSettings", "domain.biomedical.ner.tagging:run"),
    Stage("domain.notes", 3, "domain.clinical.settings:NotesSettings", "domain.clinical.notes:run", sensitive=True),
    Stage(
        "domain.readmission",
        4,
        "domain.clinical.settings:ReadmissionSettings",
        "domain.clinical.training:run",
        "domain:outcomes",
        sensitive=True,
    ),
    Stage(
        "domain.outcome",
        3,
        "domain.clinical.settings:OutcomeSettings",
        "domain.clinical.training:run_outcome",
        "domain:outcomes",
        sensitive=True,
    ),
)
