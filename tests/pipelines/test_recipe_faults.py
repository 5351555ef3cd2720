"""Recipes that a run would break on, refused while they are read."""

import pytest

from bertrelay.errors import RequestError
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY

SAMPLES = '[s]\nuses = "samples.write"\n'
PRETRAIN = '[p]\nuses = "domain.pretrain"\ndocuments = [{{ path = "." }}]\nbase = {{ {base} }}\n{more}\n'
TINY = "layers = 2, dim = 16, heads = 2, vocabulary = 300"
TEACHER = '[t]\nuses = "teachers.train"\nobjective = "softmax"\ntrain = [{ path = "." }]\nbase = "."\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[s]\nuses = []\n", r"\[s\] uses: found \[\]: unknown kind"),
        ("[s]\nuses = {}\n", r"\[s\] uses: found \{\}: unknown kind"),
        (SAMPLES + f"seed = {'[' * 5_000}{']' * 5_000}", "nested more than 20 deep"),
        (SAMPLES + f"seed = {'[' * 100}{']' * 100}", "nested more than 20 deep"),
        (SAMPLES + f"{'.'.join('a' * 900)} = 1", "nested more than 20 deep"),
        (f"seed = {2**70}\n" + SAMPLES, "more than 64 bits"),
        (SAMPLES + f"seed = {2**62}\n", r"\[s\] seed: expected 4294967295 or less"),
        (SAMPLES + "seed = -1\n", r"\[s\] seed: expected 0 or more"),
        (SAMPLES + f"seed = {'9' * 5_000}\n", "more than 64 bits"),
        (f'name = "{"x" * 300}"\n' + SAMPLES, "name: expected .* 100 bytes at most"),
        (f'name = "{"é" * 60}"\n' + SAMPLES, "name: expected .* 100 bytes at most"),
        (f'[{"x" * 300}]\nuses = "samples.write"\n', "expected the name of a stage, .* 100 bytes at most"),
        (PRETRAIN.format(base=TINY.replace("2,", "100000000,", 1), more=""), r"base\.layers: expected 1000 or less"),
        (PRETRAIN.format(base=TINY.replace("16", "100000000"), more=""), r"base\.dim: expected 65536 or less"),
        (PRETRAIN.format(base=TINY.replace("300", "1000000000000"), more=""), r"base\.vocabulary: expected"),
        (
            PRETRAIN.format(base="layers = 900, dim = 60000, heads = 2, vocabulary = 300", more=""),
            "10,000,000,000 weights",
        ),
        (PRETRAIN.format(base=TINY, more="learning_rate = inf"), "learning_rate: expected a finite number"),
        (PRETRAIN.format(base=TINY, more="weight_decay = nan"), "weight_decay: expected a finite number"),
        (PRETRAIN.format(base=TINY + ", max_tokens = 1", more=""), r"base\.max_tokens: expected 3 or more"),
        (TEACHER + "max_tokens = 1", r"\[t\] max_tokens: expected 3 or more"),
        (TEACHER + f"epochs = {2**40}", r"\[t\] epochs: expected less than 2147483648"),
        (TEACHER.replace('base = "."', f'base = "./{"m" * 300}"'), r"\[t\] base: .*File name too long"),
        (TEACHER.replace('path = "."', 'path = "~nobody-at-all/x"'), r"train\[0\]\.path: expected the path"),
        (TEACHER.replace('path = "."', 'path = "x\\u0000"'), r"train\[0\]\.path: expected the path .*null byte"),
    ],
)
def test_what_a_run_would_break_on_is_a_mistake_of_the_recipe(text, message, tmp_path):
    (tmp_path / "relay.toml").write_text(text)
    with pytest.raises(RequestError, match=message):
        read_recipe(str(tmp_path / "relay.toml"), REGISTRY)


@pytest.mark.parametrize("value", ["[" * 5_000, "[" * 50 + "]" * 50, "9" * 5_000])
def test_an_override_may_be_as_malformed_as_a_recipe(value, tmp_path):
    (tmp_path / "relay.toml").write_text(SAMPLES)
    with pytest.raises(RequestError, match=r"--set s\.seed="):
        read_recipe(str(tmp_path / "relay.toml"), REGISTRY, [f"s.seed={value}"])
