import json

import pytest
from light_stages import REGISTRY

from bertrelay.errors import RequestError
from bertrelay.privacy import sensitive_data
from pipelines import registry
from pipelines.recipe.steps import read_recipe
from pipelines.recipe.text import toml_value
from pipelines.recipe.validation import Problems

LESSON = """
name = "lesson"
seed = 7

[vars]
data = "data"
number = 1
both = "${data}/both"

[student]
uses = "light.learn"
teacher = "@teacher/model"
parallel = [{ path = "${both}/de.tsv", language = "no" }]

[teacher]
uses = "light.teach"
data = "${data}/pairs.tsv"
"""


def read(path, *overrides):
    return read_recipe(path, REGISTRY, overrides)


def settings(recipe, name):
    return next(step.settings for step in recipe.steps if step.name == name)


def mistakes_of(path, *overrides):
    with pytest.raises(RequestError) as error:
        read(path, *overrides)
    return str(error.value)


def test_paths_count_from_the_recipe_and_in_set_from_the_working_directory(write_recipe, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = write_recipe(LESSON)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert settings(read(path), "teacher").data == str(tmp_path / "data/pairs.tsv")
    changed = read(path, "vars.data=here")
    assert [(step.label, step.needs) for step in changed.steps] == [("teacher", ()), ("student", (("teacher", None),))]
    assert settings(changed, "teacher").data == str(tmp_path / "elsewhere/here/pairs.tsv")
    assert settings(changed, "student").parallel[0].path == str(tmp_path / "elsewhere/here/both/de.tsv")


LISTS = """
[vars]
own = []
l = ["de", "ko", "pt"]
also = false

[student]
uses = "light.learn"
teacher = "small"
parallel = ["${own}", { path = "public.tsv", language = "de" }]
"""


def test_a_var_that_is_a_list_adds_all_its_entries_to_a_list(write_recipe, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = write_recipe(LISTS)
    monkeypatch.chdir(tmp_path / "elsewhere")
    public = str(tmp_path / "public.tsv")
    assert [source.path for source in settings(read(path), "student").parallel] == [public]
    own = 'vars.own=[{path="a.tsv", language="ko"}, {path="b.tsv", language="ko"}]'
    paths = [source.path for source in settings(read(path, own), "student").parallel]
    assert paths == [str(tmp_path / "elsewhere/a.tsv"), str(tmp_path / "elsewhere/b.tsv"), public]


@pytest.mark.parametrize(
    ("source", "key", "remedy"),
    [
        ('for_each = ["de"], path = "{each}.tsv", languages = ["de"]', "for_each", "Write {language} in the texts of"),
        ('among = ["de"], path = "de.tsv", languages = ["de"]', "among", "Write {language} in the texts of"),
        (
            'if = "${data}", english = "a", other = "b", language = "de"',
            "if",
            'or an entry "${name}", which stands for',
        ),
        ('unless = "", hub = "a/b", others = { de = "de" }', "unless", "Write a recipe for each case"),
    ],
)
def test_a_former_key_is_refused_with_what_to_write_in_its_place(write_recipe, source, key, remedy):
    stage = '[s]\nuses = "students.distill"\nteacher = "./t"\nbase = "./b"\n[vars]\ndata = "d"\n'
    stage = stage.replace("[vars]", f"parallel = [{{ {source} }}]\n[vars]")
    with pytest.raises(RequestError) as error:
        read_recipe(write_recipe(stage), registry.REGISTRY)
    assert f"[s] parallel[0].{key}: no key of a recipe any more" in str(error.value) and remedy in str(error.value)
    with pytest.raises(RequestError, match=rf"\[s\] {key}: no key of a recipe any more"):
        read_recipe(write_recipe(f'[s]\nuses = "teachers.train"\n{key} = "x"\n'), registry.REGISTRY)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["vars.also=False"], '--set vars.also=False: expected true or false, found "False"'),
        (["vars.l=de, fr"], """expected a list, found text; write --set 'vars.l=["de","fr"]'"""),
    ],
)
def test_an_override_of_another_kind_is_the_only_problem(write_recipe, overrides, message):
    found = mistakes_of(write_recipe(LISTS), *overrides)
    assert message in found and "1 problem\n" in found


def test_vars_use_one_that_is_set_for_them_alone(write_recipe):
    path = write_recipe('[vars]\nname = "${size}-1"\n[t]\nuses = "light.teach"\nbase = "${name}"\n')
    assert settings(read(path, "vars.size=small"), "t").base == "small-1"
    path = write_recipe(LESSON.replace('data = "${data}/pairs.tsv"', 'data = "${pairs}"'))
    assert settings(read(path, "vars.pairs=${both}/x"), "teacher").data.endswith("data/both/x")


def test_a_list_whose_every_source_is_left_out_is_reported():
    with pytest.raises(
        RequestError, match=r"\[student\] parallel: expected 1 or more .* none of them is in one of the "
    ):
        read_recipe("multilingual-files", registry.REGISTRY, ['vars.languages=["ko"]'])  # captions and STSb have no ko


HUB = "hub:sentence-transformers/parallel-sentences-"
CAPTIONS, STSB = "/d/parallel/multi30k/train", "/d/sts/stsb/stsb"
ALL = {"cs", "de", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "zh"}
STUDENTS = {
    "multilingual": [
        (f"{HUB}wikimatrix:train", 3000, ALL),
        (f"{HUB}global-voices:train", 3000, ALL - {"ja", "zh"}),
        (f"{HUB}news-commentary:train", 3000, ALL - {"ko", "pl", "zh"}),
    ],
    "multilingual-files": [
        (f"{CAPTIONS}.en.gz + {CAPTIONS}.??.gz", 12000, {"cs"}),
        (f"{CAPTIONS}.en.gz + {CAPTIONS}.??.gz", 2000, {"de", "fr"}),
        *[(f"{STSB}-en-train.csv.gz + {STSB}-??-train.csv.gz", None, {"de", "es", "fr", "ja", "ru", "zh"})] * 2,
    ],
}
"""Each source of a recipe's student without those of the user: name, limit of pairs, languages."""


@pytest.mark.parametrize("chosen", [ALL, {"cs", "ko", "sv"}, {"de", "zh"}])
@pytest.mark.parametrize("recipe", STUDENTS)
def test_the_languages_of_the_flagship_choose_sources_and_test_sets(recipe, chosen):
    languages = f"vars.languages={json.dumps(sorted(chosen))}"
    changes = [languages, 'vars.own=[{path="/own", languages="${languages}", max_pairs=9}]']
    changes += ["vars.data=/d"] if recipe == "multilingual-files" else []
    steps = {step.name: step.settings for step in read_recipe(recipe, registry.REGISTRY, changes).steps}
    expected = [("/own", 9, code) for code in chosen]
    for name, most, codes in STUDENTS[recipe]:
        others = codes | {"sv"} if name.endswith("wikimatrix:train") else codes  # it takes any language
        expected += [(name.replace("??", code), most, code) for code in others & chosen]
    sources = steps["student"].parallel
    student = [(source.name, source.max_pairs, code) for source in sources for code in source.languages]
    assert sorted(student, key=str) == sorted(expected, key=str)
    for test in ("tatoeba", "base-tatoeba", "trained-domains"):
        assert {code for source in steps[test].parallel for code in source.languages} <= chosen
    if recipe == "multilingual":
        pairs = {"en-en", "en-de", "es-en", "fr-en", "it-en", "nl-en", "es-es", "ko-ko"}
        names = {f"STS17-{pair}" for pair in pairs if {*pair.split("-")} <= {"en", *chosen}}
    else:
        codes = chosen & {"de", "es", "fr", "ja", "ru", "zh"}
        names = {"STSb-en", *(f"STSb-{code}" for code in codes), *(f"STSb-en-{code}" for code in codes)}
    assert set(steps["trained-domains"].sts) == set(steps["base-trained-domains"].sts) == names


@pytest.mark.parametrize("recipe", ["trimmed", "trimmed-files", "compact", "compact-files"])
def test_the_languages_of_a_smaller_student_choose_sources_and_test_sets(recipe):
    chosen = ["de", "ko"]
    steps = read_recipe(recipe, registry.REGISTRY, [f"vars.languages={json.dumps(chosen)}"]).steps
    settings = {step.name: step.settings for step in steps}
    assert settings["trimmed"].languages == chosen
    for stage in settings.values():
        for source in (*getattr(stage, "parallel", ()), *getattr(stage, "corpus", ())):
            assert set(source.languages) <= set(chosen)
    measured = settings["compact" if "compact" in recipe else "trimmed"].sts
    on_files = {"STSb-en", "STSb-de", "STSb-en-de"}
    assert set(measured) == (on_files if "files" in recipe else {"STS17-en-en", "STS17-en-de", "STS17-ko-ko"})


def test_the_seed_of_the_recipe_reaches_stages_that_write_none(write_recipe):
    path = write_recipe(LESSON + 'seed = "${number}"\n')  # a var alone keeps its type
    assert settings(read(path, "vars.number=3"), "student").seed == 7
    assert settings(read(path, "vars.number=3"), "teacher").seed == 3
    assert settings(read(path, "vars.number=3", "seed=9"), "student").seed == 9


def test_seeds_repeat_a_stage_and_its_dependents(write_recipe):
    recipe = read(
        write_recipe("""
        seeds = [1, 2]
        [fixed]
        uses = "light.teach"
        seed = 5
        [teacher]
        uses = "light.teach"
        [score]
        uses = "light.score"
        model = "@teacher/model"
        [other]
        uses = "light.score"
        model = "@fixed/model"
        """)
    )
    repeated = [f"{name} (seed {seed})" for name in ("teacher", "score") for seed in (1, 2)]
    assert [step.label for step in recipe.steps] == ["fixed", *repeated, "other"]
    assert recipe.steps[4].needs == (("teacher", 2),)
    assert [step.settings.seed for step in recipe.steps[1:3]] == [1, 2]


@pytest.mark.promise("All errors of a recipe are listed at once", about="errors")
def test_every_mistake_is_reported_at_once_with_table_key_and_nearest_name(write_recipe):
    text = """
    nmae = "x"
    seed = true
    [vars]
    data = "d"
    [teacher]
    uses = "light.teach"
    epohs = 3
    epochs = 0
    rate = "fast"
    pooling = "maen"
    data = "${dta}/x"
    [student]
    uses = "light.lern"
    teacher = "@techer/model"
    [score]
    uses = "light.score"
    [pupil]
    uses = "light.learn"
    teacher = 3
    parallel = [{ path = "x", langauge = "de" }]
    [var]
    x = 1
    """
    text += "[marked]\nuses = 'light.teach'\nsensitive = 'yes'"
    error_text = mistakes_of(
        write_recipe(text), "pupil.epochs=2.5", "pupl.epochs=2", "vars.dat=x", "nonsense", "group_read=1"
    )
    for line in [
        'nmae: unknown key; did you mean "name"? Allowed: engine, workers, cpus_per_worker, '
        "gpus_per_worker, dashboard, name, seed, seeds, group_read",
        "seed: expected a whole number, found true",
        '[teacher] epohs: unknown key; did you mean "epochs"? Allowed: data, base, hub, epochs, rate, pooling, '
        "precision, workers, seed",
        "[teacher] epochs: expected 1 or more, found 0",
        '[teacher] rate: expected a number, found "fast"',
        """[teacher] pooling: expected 'cls' or 'mean', found "maen"; did you mean "mean"?""",
        '[teacher] data: ${dta} is not set; did you mean "data"?',
        '[student] uses: found "light.lern": unknown kind; did you mean "light.learn"? Allowed: light.teach, '
        "light.learn, light.score, light.slow",
        '[student] teacher: found @techer: unknown stage; did you mean "teacher"? Allowed: teacher, score, pupil, var, '
        "marked",
        "[score] model: is required and missing",
        "[pupil] teacher: expected text, found 3",
        '[pupil] parallel[0].langauge: unknown key; did you mean "language"? Allowed: path, language',
        "[pupil] parallel[0].language: is required and missing",
        "[pupil] epochs: expected a whole number, found 2.5",
        '[var] uses: is required and missing; did you mean "vars"?',
        '--set pupl.epochs=2: unknown stage; did you mean "pupil"?',
        '--set vars.dat=x: unknown var; did you mean "data"?',
        "--set nonsense: expected KEY=VALUE",
        '[marked] sensitive: expected true or false, found "yes"',
        "group_read: expected true or false, found 1",
    ]:
        assert f"\n  {line}" in error_text
    assert error_text.splitlines()[0].endswith("lesson.toml: 20 problems")


def test_a_circle_of_stages_is_named_once_and_a_stage_that_needs_itself_too(write_recipe):
    learns = '[{}]\nuses = "light.learn"\nteacher = "@{}/model"\n'
    error_text = mistakes_of(write_recipe("".join(learns.format(*names) for names in ("cb", "ba", "ab"))))
    assert error_text.endswith("1 problem\n  stages need each other in a circle: [a] → [b] → [a]")
    assert "[a] teacher: @a is this stage itself" in mistakes_of(write_recipe(learns.format("a", "a")))


def test_an_error_in_the_text_is_reported_with_its_line(tmp_path, write_recipe):
    assert "lesson.toml: expected TOML" in (error_text := mistakes_of(write_recipe("[a]\nuses = \n")))
    assert "line 2" in error_text
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "a"\n# caf\xe9\n')
    assert "latin.toml, line 2: expected UTF-8, found the byte 0xe9" in mistakes_of(str(path))


def test_a_missing_recipe_names_the_nearest_built_in(monkeypatch):
    monkeypatch.setattr("pipelines.recipe.text.built_in_names", lambda: ["multi30k", "quickstart"])
    assert 'did you mean "quickstart"?' in mistakes_of("quikstart")


def test_seed_and_seeds_together_are_refused_and_set_replaces_one_by_the_other(write_recipe):
    path = write_recipe('seeds = [1, 2]\n[t]\nuses = "light.teach"')
    assert read(path, "seed=4").steps[0].label == "t"
    assert len(read(path, "seeds=[1, 2, 3]").steps) == 3
    assert "expected seed or seeds, found both" in mistakes_of(write_recipe('seed = 1\nseeds = [1]\n[t]\nuses = "x"'))
    assert "expected different whole numbers" in mistakes_of(path, "seeds=[1, 1]")


def test_set_takes_a_toml_value_or_plain_text():
    values = {"2": 2, "3e-5": 3e-5, "true": True, '"2"': "2", '["a", "no"]': ["a", "no"], "{a = 1}": {"a": 1}}
    texts = ("../data", "2020-01-01", "1\nx=2", "")
    assert {written: toml_value(written) for written in (*values, *texts)} == values | {text: text for text in texts}


CHAIN = """
name = "chain"
[first]
uses = "light.teach"
[second]
uses = "light.learn"
teacher = "@first/model"
parallel = [{ path = "de.tsv", language = "de" }]
[third]
uses = "light.learn"
teacher = "other"
parallel = [{ path = "@second/model", language = "de" }]
[fourth]
uses = "light.score"
model = "other"
"""


def test_what_is_made_of_sensitive_data_is_sensitive(write_recipe):
    path = write_recipe(CHAIN)
    steps = read(path, "first.sensitive=true").steps
    assert [step.sensitive for step in steps] == [True, True, True, False]
    assert [step.reads_sensitive for step in steps] == [True, False, True, False]  # the second has but its model
    assert not any(step.sensitive for step in read(path).steps)
    with sensitive_data():
        assert all(step.reads_sensitive for step in read(path).steps)


SAMPLES = '[s]\nuses = "samples.papers"\n'
TEACHER = """
[t]
uses = "teachers.train"
objective = "softmax"
train = [{ path = "." }]
base = { layers = 2, dim = 16, heads = 2, vocabulary = 300 }
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"', "expected at least one stage"),
        ('name = "../a"\n' + SAMPLES, "name: expected letters"),
        ("[s]\nuses = []\n", r"\[s\] uses: found \[\]: unknown kind"),
        (SAMPLES + f"seed = {'[' * 5_000}{']' * 5_000}", "nested more than 20 deep"),
        (SAMPLES + f"seed = {'[' * 100}{']' * 100}", "nested more than 20 deep"),
        (SAMPLES + f"{'.'.join('a' * 900)} = 1", "nested more than 20 deep"),
        (f"seed = {2**70}\n" + SAMPLES, "more than 64 bits"),
        (SAMPLES + f"seed = {2**62}\n", r"\[s\] seed: expected 4294967295 or less"),
        (SAMPLES + f"seed = {'9' * 5_000}\n", "more than 64 bits"),
        (f'name = "{"é" * 60}"\n' + SAMPLES, "name: expected .* 100 bytes at most"),
        (f'[{"x" * 300}]\nuses = "samples.write"\n', "expected the name of a stage, .* 100 bytes at most"),
        (TEACHER.replace("2,", "100000000,", 1), r"base\.layers: expected 1000 or less"),
        (TEACHER.replace("2,", "900,", 1).replace("16", "60000"), "10,000,000,000 weights"),
        (TEACHER + "learning_rate = inf", "learning_rate: expected a finite number"),
        (TEACHER + "max_tokens = 1", r"\[t\] max_tokens: expected 3 or more"),
        (TEACHER.replace("300 }", "300, size = 1 }"), r"\[t\] base\.size: unknown key. Allowed: layers, dim"),
        (TEACHER.replace('path = "."', f'path = "./{"m" * 300}"'), r"train\[0\]\.path: .*File name too long"),
        (TEACHER.replace('path = "."', 'path = "~nobody-at-all/x"'), r"train\[0\]\.path: expected the path"),
        (TEACHER.replace('path = "."', 'path = "x\\u0000"'), r"train\[0\]\.path: expected the path .*null byte"),
    ],
)
def test_what_would_break_a_run_makes_an_invalid_recipe(text, message, write_recipe):
    with pytest.raises(RequestError, match=message):
        read_recipe(write_recipe(text), registry.REGISTRY)


@pytest.mark.parametrize("value", ["[" * 5_000, "[" * 50 + "]" * 50, "9" * 5_000])
def test_an_override_may_be_as_malformed_as_a_recipe(value, write_recipe):
    with pytest.raises(RequestError, match=r"--set s\.seed="):
        read_recipe(write_recipe(SAMPLES), registry.REGISTRY, [f"s.seed={value}"])


def doubled(first, each):
    values = "".join(f"a{number} = {each.replace('?', str(number - 1))}\n" for number in range(1, 60))
    return f"[vars]\na0 = {first}\n{values}[teacher]\nuses = 'light.teach'\nbase = '${{a59}}'\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (doubled("'xxxxxxxx'", "'${a?}${a?}'"), r"\[vars\] a12"),
        (doubled("['x']", "['${a?}', '${a?}']"), r"\[vars\] a16"),
        (doubled("['x']", "[['${a?}'], ['${a?}']]"), r"\[vars\] a15"),
    ],
    ids=["text", "lists", "lists in lists"],
)
def test_a_recipe_that_grows_without_a_bound_is_refused_where_it_does(write_recipe, text, place):
    with pytest.raises(RequestError, match=rf"{place}.*: expected at most 100,000 values"):
        read(write_recipe(text))


def test_a_chain_of_thousands_of_stages_is_read_in_order_and_its_circle_is_found(write_recipe):
    stages = [f"[s{n}]\nuses = 'light.teach'\nbase = '@s{n + 1}/model'\n" for n in range(2_000)]
    chain = "".join(stages) + "[s2000]\nuses = 'light.teach'\n"
    assert read(write_recipe(chain)).stage_names == [f"s{n}" for n in range(2_000, -1, -1)]
    problems = mistakes_of(
        write_recipe("".join(stages) + "[s2000]\nuses = 'light.teach'\nbase = '@s1999/model'\n", "b.toml")
    )
    assert "stages need each other in a circle: [s1999] → [s2000] → [s1999]" in problems


def test_a_setting_of_a_stage_outside_of_stages_says_where_it_belongs(write_recipe):
    found = mistakes_of(write_recipe(LESSON), "epochs=2")
    assert "epochs: is a setting of a stage: write student.epochs or teacher.epochs" in found


@pytest.mark.parametrize("target", ["vars.languages", "student.languages"])
def test_a_list_whose_quotes_the_shell_has_taken_is_shown_as_it_is_to_be_written(write_recipe, target):
    path = write_recipe(LESSON.replace("number = 1", 'number = 1\nlanguages = ["fr"]'))
    found = mistakes_of(path, f"{target}=[de, ko]")
    assert f"""write --set '{target}=["de","ko"]'""" in found
    table = mistakes_of(path, f"{target}=[{{path=de.tsv, header=false}}]")
    assert f"""in double ones: --set '{target}=[{{ path = "FILE" }}]'""" in table and '["{path' not in table


@pytest.mark.parametrize(
    ("source", "error_text"),
    [
        (
            'columns = [0, 1], header = false, language = "de"',
            r"\[s\] parallel\[0\]: columns, language: no key .*english = 0, others = { de = 1 }\. Its keys are ",
        ),
        ("lines = 1, others = { de = 1 }", r"parallel\[0\]\.lines: unknown key\. Allowed: sensitive, path, hub"),
    ],
)
def test_keys_of_another_source_of_translations_are_named_with_those_to_write(write_recipe, source, error_text):
    parallel = f'[{{ path = "de.tsv", {source} }}]'
    path = write_recipe(f'[s]\nuses = "students.distill"\nteacher = "./t"\nbase = "./b"\nparallel = {parallel}\n')
    with pytest.raises(RequestError, match=error_text):
        read_recipe(path, registry.REGISTRY)


def test_a_missing_recipe_names_the_nearest_file(write_recipe):
    path = write_recipe(LESSON)
    with pytest.raises(RequestError, match=r"did you mean .*lesson\.toml\? Built in: "):
        read_recipe(path.replace("lesson.toml", "lessom.toml"), REGISTRY)


def test_a_problem_that_begins_with_its_key_is_named_by_it_behind_its_stage():
    problems = Problems("")
    problems.add("student", "", "patience: without effect")
    problems.add("student", "", "expected `parallel` or `sts`: without any there is nothing to score")
    assert problems.found == [
        "[student] patience: without effect",
        "[student]: expected `parallel` or `sts`: without any there is nothing to score",
    ]
