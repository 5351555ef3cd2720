from pipelines.report.tables import MetricValue, metric_values, score_tables, shown, signs


def table_of(tables, family, caption=""):
    [found] = [table for table in tables if (table.family.title, table.caption) == (family, caption)]
    return found


def cells(table):
    return {row: [str(figure) for figure in table.cells(row)] for row in table.rows}


def test_a_language_is_a_row_and_lookup_stands_beside_vectors_with_means_by_hand():
    metrics = {
        "translation_accuracy/en-de": 0.95,
        "lookup_accuracy/en-de": 0.5,
        "translation_accuracy/de-en": 0.93,
        "translation_accuracy/en-ko": 0.85,
        "lookup_accuracy/en-ko": None,
        "translation_accuracy/ko-en": 0.73,
    }
    table = table_of(score_tables({"evaluation": metrics}), "Translation accuracy", "evaluation")
    assert table.groups == [("Vectors", 2), ("Word-for-word lookup", 1)]
    assert [column for _, column in table.columns] == ["from English", "into English", "from English"]
    assert cells(table) == {
        "de": ["0.950", "0.930", "0.500"],
        "ko": ["0.850", "0.730", "–"],
        "mean": ["0.900", "0.830", "–"],
    }


def test_published_rows_of_tatoeba_stand_beside_the_languages_that_were_measured():
    metrics = {f"translation_accuracy/{of}": 0.5 for of in ("en-de", "de-en", "en-ko", "ko-en", "en-xx", "xx-en")}
    table = table_of(
        score_tables({"tatoeba": metrics}, {"tatoeba": "students.evaluate"}), "Translation accuracy", "tatoeba"
    )
    labse = [column for column, (group, name) in enumerate(table.columns) if (group, name) == ("published", "LaBSE")]
    values = {row: [str(table.cells(row)[place]) for place in labse] for row in table.rows}
    assert values == {"de": ["0.994"], "ko": ["0.929"], "xx": ["–"], "mean": ["–"]}, "no mean where a language lacks"
    known = {name: value for name, value in metrics.items() if "xx" not in name}
    table = table_of(
        score_tables({"tatoeba": known}, {"tatoeba": "students.evaluate"}), "Translation accuracy", "tatoeba"
    )
    assert str(table.cells("mean")[labse[0]]) == shown((0.994 + 0.929) / 2)
    other = score_tables({"flickr": metrics}, {"flickr": "students.evaluate"})
    assert not [
        name for group, name in table_of(other, "Translation accuracy", "flickr").columns if group == "published"
    ]


def test_similarity_across_languages_has_a_table_for_each_set():
    metrics = {
        f"sts/{name}/spearman_cosine": 0.5 for name in ("STS17-en-de", "STS22-de-en", "STSb-de", "stsb", "en-de")
    }
    tables = score_tables({"test": metrics}, {"test": "students.evaluate"})
    of_sets = {
        name: table_of(tables, "Semantic textual similarity by language", name) for name in ("STS17", "STS22", "STSb")
    }
    assert {name: list(table.rows) for name, table in of_sets.items()} == {
        "STS17": ["en-de"],
        "STS22": ["de-en"],
        "STSb": ["de"],
    }
    assert cells(of_sets["STS17"])["en-de"][:3] == ["0.500", "0.768", "0.739"]
    assert [group for group, _ in of_sets["STS22"].columns] == ["test", "published", "published"]
    assert list(table_of(tables, "Semantic textual similarity").rows) == ["stsb", "en-de"]


def test_sts_of_several_stages_stands_side_by_side_and_a_missing_one_is_a_dash_and_not_zero():
    tables = score_tables({"first": {"sts/stsb/spearman_cosine": 0.8}, "second": {"sts/de/spearman_cosine": 0.0}})
    table = table_of(tables, "Semantic textual similarity")
    assert [group for group, _ in table.groups] == ["first", "second"]
    assert cells(table) == {"stsb": ["0.800", "–"], "de": ["–", "0.000"]}


def test_what_is_of_no_known_family_is_shown_and_published_figures_only_where_their_row_is():
    tables = score_tables({"e": {"words": 2.5, "translation_accuracy/de-fr": 0.5, "sts": 0.1, "dev/accuracy": 1}})
    assert list(table_of(tables, "Other metrics").rows) == ["words", "translation_accuracy/de-fr", "sts"]
    assert list(table_of(tables, "Dev data").rows) == ["accuracy"]
    tables = score_tables({"r": {"validation/auroc": 0.7, "auroc": 0.6}}, {"r": "domain.readmission"})
    assert list(table_of(tables, "Validation data").rows) == ["auroc"]
    tables = score_tables({"a": {"ablation/concatenation/u, v/NLI": 0.5, "senteval/MR/accuracy": 0.5}})
    assert table_of(tables, "Ablation", "concatenation").columns == [("a", "NLI"), ("published", "NLI")]
    assert table_of(tables, "Classification of sentences").columns == [("a", "accuracy")]  # no row is published


def test_intervals_and_deviations_belong_to_their_metric():
    found = metric_values({"f1": 0.5, "f1_low": 0.4, "f1_high": 0.6, "gap_low": 0.1})
    assert found == {"f1": MetricValue(0.5, 0.4, 0.6), "gap_low": MetricValue(0.1)}
    assert found["f1"].interval == "0.400 – 0.600"
    found = metric_values({"f1": 0.5, "f1_deviation": 0.0213, "f1_low": 0.4, "f1_low_deviation": 0.01, "f1_high": 0.6})
    assert [(name, str(value), value.interval) for name, value in found.items()] == [("f1", "0.5000 ± 0.0213", "")]
    counts = metric_values({"best_step": 851.0, "accuracy": 1.0, "loss": 2.0, "loss_low": 1.5, "nan": None})
    assert [str(value) for value in counts.values()] == ["851", "1.000", "2.000", "–"]


def test_figures_are_written_for_people():
    texts = {0.0: "0.000", -0.5: "−0.500", 20000: "20,000", 1234.5: "1,234", 250.25: "250.2", 0.00023149: "0.000231"}
    assert {value: shown(value) for value in texts} == texts


def test_a_tiny_number_has_as_many_decimals_as_its_interval_and_its_deviation():
    difference = MetricValue(0.000486, -0.012, 0.013)
    assert (str(difference), difference.interval) == ("0.000", "−0.012 – 0.013")
    assert str(MetricValue(-0.0003, -0.012, 0.013)) == "0.000"
    assert MetricValue(0.0123, 0.0007, 0.02).interval == "0.001 – 0.020"
    assert str(MetricValue(0.81251, deviation=0.00001)) == "0.8125 ± 0.0000"
    tiny = MetricValue(0.0005, 0.0002, 0.0008)  # where all are tiny, digits are what they are of
    assert (str(tiny), tiny.interval) == ("0.0005", "0.0002 – 0.0008")


def test_tasks_of_mteb_have_their_published_rows_too():
    names = ["Tatoeba/ces-eng/f1", "BUCC.v2/de-en/f1", "STS17/en-de/cosine_spearman", "STS22.v2/de/cosine_spearman"]
    tables = score_tables({"tasks": {f"mteb/{name}": 0.5 for name in names}}, {"tasks": "teachers.protocols"})
    found = {table.caption: next(iter(table.rows.values()))["published", "LaBSE"].value for table in tables}
    assert found == {"Tatoeba": 0.9668, "BUCC.v2": 0.9943, "STS17": 0.7385, "STS22": 0.4858}
    mined = score_tables({"mined": {"mining_f1/de-en/test": 0.5}}, {"mined": "students.evaluate"})
    assert table_of(mined, "Bitext mining").rows["de-en"]["published", "LASER"].value == 0.962


def test_every_sentence_about_a_family_follows_from_what_was_measured():
    binary = {"auroc": 0.8, "rp80": 0.2, "calibration_slope": 1.0}
    for kind, metrics, there, absent in (
        ("domain.outcome", binary, ("RP80 is", "recalibrated"), ("Huang", "MIMIC", "macro", "Permuted", "Differences")),
        ("domain.readmission", binary, ("RP80 is", "Huang"), ("macro",)),
        (
            "domain.outcome",
            {"auroc_macro": 0.8, "accuracy": 0.6},
            ("macro",),
            ("micro", "RP80", "recalibrated", "Huang"),
        ),
        ("domain.readmission", {"auroc": 0.8, "permutation_p/tfidf": 0.05}, ("Permuted labels",), ("RP80 is",)),
        ("domain.pretrain", {"mlm_loss": 2.0, "before/mlm_loss": 9.0}, ("losses in nats",), ("chooses",)),
        ("domain.pretrain", {"mlm_loss": 2.0, "best_step": 9}, ("chooses the best weights",), ()),
        ("domain.qa-evaluate", {"f1": 0.5}, ("SQuAD",), ("BioASQ",)),
        ("domain.terms", {"terms/count": 9}, (), ("ratings", "Huang", "group")),
        ("students.evaluate", {"translation_accuracy/en-de": 0.9}, ("nearest neighbour",), ("lookup", "ublished")),
    ):
        table, *_ = score_tables({"a": metrics}, {"a": kind})
        assert all(words in table.about for words in there), (kind, table.about)
        assert not [words for words in absent if words in table.about], (kind, table.about)


def test_signs_are_explained_where_they_are():
    def signs_of(metrics):
        return signs(score_tables({"a": metrics}))

    assert signs_of({"words": 2.5}) == ""
    assert signs_of({"f1": 0.5, "f1_low": 0.4, "f1_high": 0.6}) == "Small numbers are 95 % bootstrap intervals."
    both = {"f1": None, "accuracy": 0.5, "accuracy_deviation": 0.1}
    assert signs_of(both) == "± is the standard deviation over seeds; – was not measured."
