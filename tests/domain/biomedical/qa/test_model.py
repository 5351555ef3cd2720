"""The folder of a model that answers: read by transformers, and errors of damaged ones."""

import pytest
import torch
from synthetic_questions import ask, edit, find_answers, remove_padding, start_answerer
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, RobertaConfig, RobertaForQuestionAnswering

from bertrelay.errors import RequestError
from bertrelay.model.new import train_unigram
from bertrelay.model.tokenizer import load_tokenizer, save_tokenizer
from bertrelay.settings import options_of
from domain.biomedical.qa.model import HEAD, AnswerModel, load_model, save_model
from domain.biomedical.qa.settings import QaSettings
from domain.biomedical.qa.subwords import PairSplitter

QUESTION, CONTEXT = "mild", "the patient of gout and angina pectoris"


def started(tiny_bert, **more):
    model = start_answerer(tiny_bert, max_tokens=40, overlap=26, **more)
    return AnswerModel(
        model.network.eval(), model.tokenizer, 40, 26, 5, threshold=-0.5, temperature=1.7, whole_words=False
    )


def test_transformers_loads_the_folder_and_gives_the_same_scores(tiny_bert, tmp_path):
    model = started(tiny_bert)
    save_model(model, tmp_path)
    theirs = AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    encoded = AutoTokenizer.from_pretrained(tmp_path)(QUESTION, CONTEXT, return_tensors="pt")
    splitter = PairSplitter(model.tokenizer)
    subwords = splitter([ask(QUESTION, CONTEXT)])
    width = encoded["input_ids"].shape[1]
    batch = splitter.batch(subwords, subwords.windows(40, 26), width + 3, 2)  # padding in both directions
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert batch[name][:, :width].tolist() == encoded[name].tolist() * 2
        assert not batch[name][:, width:].any()
    with torch.inference_mode():
        ours, expected = model.network(**batch), theirs(**encoded)
    choices = [0, *range(3, width - 1)]
    for side, logits in enumerate((expected.start_logits, expected.end_logits)):
        torch.testing.assert_close(ours[0, choices, side], logits[0, choices], rtol=1e-5, atol=1e-5)
    assert ours.isinf().sum() == 2 * 2 * (width + 3 - len(choices))


def test_a_model_comes_back_as_it_was_and_a_training_on_it_begins_with_its_head(tiny_bert, tmp_path):
    model = started(tiny_bert)
    save_model(model, tmp_path)
    back, again = load_model(tmp_path), start_answerer(tmp_path, overlap=30, seed=99)
    for name in ("max_tokens", "overlap", "max_answer_tokens", "threshold", "temperature", "whole_words"):
        assert getattr(back, name) == getattr(model, name)
    for name, tensor in model.network.state_dict().items():
        torch.testing.assert_close(back.network.state_dict()[name], tensor)
        torch.testing.assert_close(again.network.state_dict()[name], tensor)
    assert (again.overlap, again.threshold, again.temperature) == (30, None, 1.0)


def test_a_damaged_folder_is_refused(tiny_bert, tmp_path):
    save_model(started(tiny_bert), tmp_path)
    edit(tmp_path / "qa.json", max_answer_tokens=0)
    with pytest.raises(RequestError, match=r"qa\.json .*max_answer_tokens"):
        load_model(tmp_path)
    remove_padding(tmp_path)
    with pytest.raises(RequestError, match="has a pad_token, and this one does not"):
        load_model(tmp_path)


def test_a_roberta_of_transformers_without_ours_beside_reads_pairs_as_its_tokenizer_frames_them(tmp_path):
    tokenizer = train_unigram([QUESTION, CONTEXT] * 3, 60, 64)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=66, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    RobertaForQuestionAnswering(config).save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path, 64, has_types=False)
    model = load_model(tmp_path)
    assert (model.max_tokens, model.overlap, model.max_answer_tokens, model.threshold) == (64, 43, 30, None)
    splitter = PairSplitter(model.tokenizer)
    subwords = splitter([ask(QUESTION, CONTEXT)])
    windows = subwords.windows(64, 43)
    expected = load_tokenizer(tmp_path)(QUESTION, CONTEXT)["input_ids"]
    assert splitter.batch(subwords, windows, len(expected), 1)["input_ids"][0].tolist() == expected
    for candidate in next(find_answers(model, [ask(QUESTION, CONTEXT)], top=20, precision="fp32")):
        answer = CONTEXT[candidate.start : candidate.end]
        assert answer
        assert answer == answer.strip()  # though its subwords begin with the space before them


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ({"max_tokens": 384, "stride": 128}, "write overlap = 256, which is max_tokens, 384, less 128$"),
        (
            {"stride": 192},
            "write overlap = 192, which is max_tokens, 384, less 192, or less by as much as the base has",
        ),
        ({"max_tokens": 128, "stride": "a"}, "write overlap = max_tokens less it$"),
    ],
)
def test_a_stride_is_refused_with_the_overlap_of_the_same_windows(windows, expected):
    with pytest.raises(
        RequestError, match=f"stride: expected the overlap of windows in place of their step; {expected}"
    ):
        options_of(QaSettings, {"base": "b", "train": [{"path": "q.jsonl"}], **windows})


def test_neighbouring_windows_share_the_overlap_with_question_and_special_tokens(tiny_bert):
    subwords = PairSplitter(start_answerer(tiny_bert).tokenizer)([ask("mild given", " ".join(["the"] * 14))])
    windows = subwords.windows(12, 8)  # three special tokens, and two of the question
    assert list(zip(windows.starts.tolist(), windows.ends.tolist(), strict=True)) == [(0, 7), (4, 11), (7, 14)]
    assert subwords.too_long(12, 4).tolist() == [True]
    assert subwords.too_long(12, 5).tolist() == [False]


def test_other_heads_and_windows_of_which_each_is_the_next_one_are_refused(tiny_bert):
    with pytest.raises(RequestError, match="overlap: expected less than max_tokens, which is 40, found 40"):
        start_answerer(tiny_bert, overlap=40)
    with pytest.raises(RequestError, match=r"expected one that answers questions, found none in .*domain\.qa"):
        load_model(tiny_bert)
    network = start_answerer(tiny_bert).network.network
    network.start_logits = torch.nn.Linear(2, 1)
    with pytest.raises(RequestError, match=r"on a BERT, found 'bert', which has qa_outputs, start_logits"):
        HEAD.check(network)
