"""The metrics of students as a report shows them."""

from bertrelay.metrics import Family, Metric, one_of
from teachers.report_metrics import METRICS as OF_TEACHERS

TRANSLATION = Family(
    "Translation accuracy",
    "The share of sentences whose nearest neighbour in the other language is their own translation. Word-for-word "
    "lookup finds it with a dictionary from the training pairs alone.",
    place=10,
    in_terminal=True,
    with_means=True,
)
DISTANCE = Family(
    "Distance to the teacher",
    "Mean squared error of the student's vectors; relative to the variance of the teacher's, 0 is the teacher and 1 "
    "what its mean vector scores.",
    place=30,
)
METHODS = {"translation_accuracy": "Vectors", "lookup_accuracy": "Word-for-word lookup"}
ERRORS = {"mse": "squared error", "mse_relative": "relative"}
METHOD_AND_SET = rf"{one_of('method', METHODS)}/(?:(?P<set>.+)/)?"

METRICS = (
    *(
        Metric(
            METHOD_AND_SET + pair,
            TRANSLATION,
            "{language}",
            direction,
            group="{method}",
            caption="{stage} · {set}",
            labels={"method": METHODS},
        )
        for pair, direction in (
            (r"en-(?P<language>[^/]+)", "from English"),
            (r"(?P<language>[^/]+)-en", "into English"),
        )
    ),
    Metric(
        rf"{one_of('error', ERRORS)}/(?P<language>.+)",
        DISTANCE,
        "{language}",
        "{error}",
        labels={"error": ERRORS},
        better="lower",
    ),
    *OF_TEACHERS,
)
