import json

from bertrelay.settings import ModelSource
from students.evaluate.translation import read_variance, save_variance


def test_the_variance_is_kept_with_the_model_and_unknown_without(tmp_path):
    assert read_variance(ModelSource.parse(str(tmp_path))) is None
    assert read_variance(ModelSource("some/model-of-the-hub")) is None
    save_variance(0.1 + 0.2, tmp_path)
    assert read_variance(ModelSource.parse(str(tmp_path))) == 0.1 + 0.2
    assert list(json.loads((tmp_path / "distillation.json").read_text())) == ["target_variance"]
