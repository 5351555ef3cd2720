"""The stage `samples.questions`."""

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.question_files import write_questions
from pipelines.samples.settings import QuestionSettings


def run(settings: QuestionSettings, context: StageContext) -> Metrics:
    """Writes questions about made-up abstracts into the stage's output; how many each part has."""
    counts = write_questions(context.output, settings) if context.process_group.is_main else {}
    return {f"questions/{name.split('.')[1]}": count for name, count in counts.items()}
