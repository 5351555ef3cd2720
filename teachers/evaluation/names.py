"""The protocols of the SBERT paper, their sets, and the official names of their parts; loads nothing."""

from typing import Literal, get_args

Protocol = Literal["sts", "senteval", "facets", "sections"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

SETS: dict[str, tuple[str, ...]] = {
    "sts": ("STS12", "STS13", "STS14", "STS15", "STS16", "STSb", "SICK-R"),
    "senteval": ("MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC"),
    "facets": ("AFS",),
    "sections": ("sections",),
}

YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),  # the fourth, SMT, is not free, and papers leave it out
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""The subsets of each year's STS task."""

FOLDED = {
    "MR": {"positive": "rt-polarity.pos", "negative": "rt-polarity.neg"},
    "CR": {"positive": "custrev.pos", "negative": "custrev.neg"},
    "SUBJ": {"objective": "subj.objective", "subjective": "subj.subjective"},
    "MPQA": {"positive": "mpqa.pos", "negative": "mpqa.neg"},
}
"""Of the classifications without a test part, class to file: a sentence in each line."""

SPLIT = {
    "SST": ("sentiment-train", "sentiment-test"),
    "TREC": ("train_5500.label", "TREC_10.label"),
    "MRPC": ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"),
}
"""Of the others, the files to train on and to test on."""

CLASSES = {
    "SST": ("0", "1"),
    "TREC": ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    "MRPC": ("0", "1"),
}
"""Of these the classes that a line may have."""

MAIN = ("spearman_cosine", "spearman_score")
"""Of the correlations, those that papers report: of vectors, and of networks that read two sentences at once."""

TOPICS = {"gun-control": "ArgPairs_GC.csv", "gay-marriage": "ArgPairs_GM.csv", "death-penalty": "ArgPairs_DP.csv"}
ARGUMENT_COLUMNS = {"regression_label": 0, "sentence_1": 9, "sentence_2": 10}
"""Columns of the arguments' files, by name and place: the mean of the annotators' scores, 0 to 5, and two arguments."""

TRIPLET = ("Sentence1", "Sentence2", "Sentence3")
"""Columns of the sections' files: anchor, positive, negative."""
