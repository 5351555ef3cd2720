"""The metrics of models of pretraining, terms, entities, answers and clinical outcomes as a report shows them."""

from bertrelay.metrics import Family, Metric, one_of

PRETRAINING_FAMILY = Family(
    "Masked words and next sentences",
    "On held-out documents, with the same masks and pairs before and after the training; losses in nats. The "
    "log-likelihood, minus the sum of the losses, chooses the best weights.",
    place=31,
    in_terminal=True,
)
PRETRAINING = (
    Metric(r"before/(?P<metric>(?:mlm_|nsp_|log_likelihood).*)", PRETRAINING_FAMILY, "{metric}", "before"),
    Metric(r"(?P<metric>(?:mlm_|nsp_|log_likelihood).*)", PRETRAINING_FAMILY, "{metric}", "after"),
)

ENTITY_FAMILY = Family(
    "Entities",
    "Strict: an entity counts when its borders and its type are right. Lenient is seqeval's default reading of tags, "
    "for comparison with metrics that were computed so.",
    place=40,
)
ENTITY_MEASURES = {"f1": "F1", "precision": "precision", "recall": "recall"}
ENTITY_MEASURES |= {f"{name}_lenient": f"{title}, lenient" for name, title in ENTITY_MEASURES.items()}
ENTITY_COUNTS = {
    "gold_entities": "gold",
    "predicted_entities": "predicted",
    "right": "right",
    "wrong_span": "wrong border",
    "wrong_type": "wrong type",
    "wrong_both": "wrong border and type",
    "missed": "missed: nothing predicted there",
    "spurious": "spurious: nothing gold there",
    "ece": "calibration error of the confidences",
    "ece_uncalibrated": "before the calibration",
}
OF_TYPE = r"(?:/(?P<type>.+))?"
ALL_TYPES = {"type": {"": "all types"}, "measure": ENTITY_MEASURES}
ENTITIES = (
    Metric(one_of("measure", ENTITY_MEASURES) + OF_TYPE, ENTITY_FAMILY, "{type}", "{measure}", labels=ALL_TYPES),
    Metric(
        "published_" + one_of("measure", ENTITY_MEASURES) + OF_TYPE,
        ENTITY_FAMILY,
        "{type}",
        "{measure}, published",
        labels=ALL_TYPES,
    ),
    Metric(
        one_of("count", ENTITY_COUNTS) + "(?:/.*)?",
        ENTITY_FAMILY,
        "{count}",
        caption="What became of them",
        labels={"count": ENTITY_COUNTS},
    ),
)

ANSWER_FAMILY = Family(
    "Answers",
    "Exact match and F1 as SQuAD's script has them: the best over the right answers, then the mean over questions. "
    "Strict and lenient accuracy and MRR as BioASQ's evaluator has them.",
    place=41,
)
ANSWER_MEASURES = {
    "exact_match": "exact match",
    "f1": "F1",
    "strict_accuracy": "strict accuracy",
    "lenient_accuracy": "lenient accuracy",
    "mrr": "MRR",
}
QUESTION_SETS = {
    "": "all questions",
    "has_answer": "with an answer in the text",
    "no_answer": "without one",
    "with_unanswered": "those without any candidate counted as wrong",
    "first_sentence": "the text's first sentence as answer",
    "first_sentence/has_answer": "the same, with an answer in the text",
    "first_sentence/no_answer": "the same, without one",
}
QUESTION_COUNTS = {
    "questions": "questions",
    "scored": "questions with right answers, or said to have none, which are scored",
    "texts": "different texts",
    "longest_text_pieces": "word pieces of the longest text",
    "beyond_max_answer_tokens": "questions whose right answers are all longer than the model may give",
    "answered": "questions answered",
    "unanswered": "questions without any candidate",
    "ece": "calibration error of the probabilities",
    "ece_uncalibrated": "before the calibration",
}
OF_QUESTIONS = r"(?:(?P<set>.+)/)?"
ANSWER_LABELS = {"set": QUESTION_SETS, "measure": ANSWER_MEASURES}
ANSWERS = (
    Metric(
        OF_QUESTIONS + one_of("measure", ANSWER_MEASURES), ANSWER_FAMILY, "{set}", "{measure}", labels=ANSWER_LABELS
    ),
    Metric(
        OF_QUESTIONS + "published_" + one_of("measure", ANSWER_MEASURES),
        ANSWER_FAMILY,
        "{set}",
        "{measure}, published",
        labels=ANSWER_LABELS,
    ),
    Metric(
        one_of("count", QUESTION_COUNTS),
        ANSWER_FAMILY,
        "{count}",
        caption="What there was to answer, and how far off the probabilities are",
        labels={"count": QUESTION_COUNTS},
    ),
)

OUTCOME_FAMILY = Family(
    "What becomes of patients",
    "Per admission, on the test split as it is; intervals resample subjects. RP80 is the recall at the "
    "threshold that had a precision of 0.8 on the validation split, beside the optimistic one that is chosen on the "
    "test split itself. Model and baselines are recalibrated by a logistic regression on the validation split. "
    "Observed/expected is the number of positives divided by the sum of the probabilities; slope and intercept are "
    "those of a logistic regression on the log-odds, the intercept with the slope held at 1. Ideal are 1, 1 and 0. "
    "Calibration error: ten bins of equal size; chance alone keeps that of perfect probabilities above 0, and the "
    "interval corrects for it. Differences between model and baseline use the same resamples of subjects. Permuted "
    "labels: TF-IDF is fitted again to labels of train that were permuted over subjects, and shows what it scores when "
    "labels have nothing to do with texts; whether texts give the outcome away, it cannot show. Of several labels, the "
    "macro AUROC is the mean of each against the rest, the "
    "micro AUROC that of all pairs of admission and label together. For comparison, Huang, "
    "Altosaar & Ranganath (2019) report for readmission on MIMIC-III an AUROC of 0.714 from discharge summaries and of "
    "0.674 and 0.672 from early notes, an AUPRC of 0.701 and an RP80 of 0.242. Theirs cannot be compared with these: "
    "their test set was balanced to as many readmitted as not, which AUPRC and RP80 rise with; it was split by "
    "admission, so that patients were in both splits; labels and cohort followed other rules; and RP80 was the "
    "optimistic one.",
    place=42,
)
OUTCOME_MEASURES = {
    "auroc": "AUROC",
    "best_auroc": "AUROC of the true risk",
    "auprc": "AUPRC",
    "rp80": "RP80",
    "rp80_precision": "precision at its threshold",
    "rp80_optimistic": "RP80, optimistic",
    "alarms": "alarms",
    "alarm_recall": "recall of the alarms",
    "alarm_precision": "precision of the alarms",
    "auroc_difference": "AUROC, model minus this",
    "auprc_difference": "AUPRC, model minus this",
    "auroc_permuted": "AUROC with permuted labels, mean",
    "auroc_permuted_sd": "their standard deviation",
    "auroc_permuted_highest": "the highest of them",
    "permutations": "permutations",
    "permutation_p": "permutation test, p",
    "brier": "Brier score",
    "brier_uncalibrated": "Brier score before the recalibration",
    "calibration_error": "calibration error",
    "calibration_error_uncalibrated": "calibration error before it",
    "observed_expected": "observed/expected",
    "observed_expected_uncalibrated": "observed/expected before it",
    "calibration_slope": "calibration slope",
    "calibration_slope_uncalibrated": "calibration slope before it",
    "calibration_intercept": "calibration intercept",
    "calibration_intercept_uncalibrated": "calibration intercept before it",
    "prevalence": "prevalence",
    "auroc_macro": "AUROC, macro",
    "auroc_micro": "AUROC, micro",
    "accuracy": "accuracy",
    "labels": "labels",
    "labels_left_out": "labels without an AUROC, left out of the mean",
}
OUTCOME_MODELS = {"": "model", "note_length": "note length alone", "tfidf": "TF-IDF, logistic regression"}
OUTCOMES = (
    Metric(
        one_of("measure", OUTCOME_MEASURES) + "(?:/(?P<model>.+))?",
        OUTCOME_FAMILY,
        "{measure}",
        "{model}",
        labels={"measure": OUTCOME_MEASURES, "model": OUTCOME_MODELS},
    ),
)

TERM_FAMILY = Family(
    "Medical terms",
    "How the cosines of terms agree with human ratings, and how many of a term's nearest neighbours are of its group. "
    "For comparison, Huang, Altosaar & Ranganath (2019) report a Pearson correlation of 0.670 with physicians' ratings "
    "of other terms.",
    place=43,
)
TERM_MEASURES = {
    "pearson_cosine": "Pearson, cosine and ratings",
    "spearman_cosine": "Spearman, cosine and ratings",
    "rated_pairs": "rated pairs",
    "ratings_missing": "ratings of other terms",
    "ratings_repeated": "ratings of a pair that has one",
    "same_group": "neighbours of the same group",
    "same_group_by_chance": "by chance",
    "count": "terms",
    "dim": "dimensions",
    "layers": "layers summed",
    "perplexity": "perplexity of the picture",
    "rejected": "left out",
    "unknown": "terms that the vocabulary does not know",
    "unlabelled": "terms without a label on the picture",
}
TERMS = (
    Metric("terms/" + one_of("measure", TERM_MEASURES), TERM_FAMILY, "{measure}", labels={"measure": TERM_MEASURES}),
)
