import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, PreTrainedTokenizerFast

from bertrelay.backbone import save_network
from bertrelay.errors import RequestError
from bertrelay.new_encoder import train_unigram, train_wordpiece
from bertrelay.settings import InputFile
from bertrelay.tokenizer import load_tokenizer, save_tokenizer
from domain.pretraining.network import give_embeddings, read_words, with_new_tokens

TEXTS = ["the patient has a fever and low potassium", "the heart and the kidney", "[ name ] h y p e r k a l e m i a s"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_wordpiece(TEXTS, 120, 64)


def network_for(tokenizer):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    network = BertForPreTraining(BertConfig(vocab_size=len(tokenizer), **sizes))
    torch.nn.init.normal_(network.cls.predictions.bias)
    return network.eval()


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def test_words_and_marks_become_one_token_each_and_other_text_stays(tokenizer):
    before = [ids(tokenizer, text) for text in TEXTS[:2]]
    extended, pieces = with_new_tokens(tokenizer, ["Hyperkalemia"], ["[NAME]"])
    assert len(extended) == len(tokenizer) + 2
    [word], [mark] = ids(extended, "hyperkalemia"), ids(extended, "[NAME]")
    assert set(pieces) == {word, mark} == {len(tokenizer), len(tokenizer) + 1}
    assert ids(extended, "the Hyperkalemia of [NAME]'s heart")[1:2] == [word]
    assert ids(extended, "[NAME]'s")[0] == mark
    assert ids(extended, "hyperkalemias")[0] == word  # a piece of longer words, too
    assert [ids(extended, text) for text in TEXTS[:2]] == before
    assert [ids(tokenizer, text) for text in TEXTS[:2]] == before and len(tokenizer) not in ids(
        tokenizer, "hyperkalemia"
    )


def test_embeddings_and_biases_start_as_the_mean_of_the_old_pieces(tokenizer):
    network = network_for(tokenizer)
    old_rows = network.get_input_embeddings().weight.detach().clone()
    old_biases = network.cls.predictions.bias.detach().clone()
    extended, pieces = with_new_tokens(tokenizer, ["hyperkalemia"], ["[NAME]"])
    give_embeddings(network, pieces)
    for text in ("hyperkalemia", "[NAME]"):
        [number], old = ids(extended, text), ids(tokenizer, text)
        assert len(old) > 1
        torch.testing.assert_close(network.get_input_embeddings().weight[number], old_rows[old].mean(dim=0))
        torch.testing.assert_close(network.cls.predictions.bias[number], old_biases[old].mean())
    torch.testing.assert_close(network.get_input_embeddings().weight[: len(old_rows)], old_rows)
    assert network.cls.predictions.decoder.weight is network.get_input_embeddings().weight
    assert network.config.vocab_size == len(extended)


def test_what_is_one_token_already_stays_as_it_is(tokenizer, capsys):
    once, _ = with_new_tokens(tokenizer, ["hyperkalemia"], ["[NAME]"])
    twice, pieces = with_new_tokens(once, ["hyperkalemia", "the"], ["[NAME]"])
    assert pieces == {} and twice.get_vocab() == once.get_vocab()
    assert "0 of 3 words and marks are new" in capsys.readouterr().err
    network = network_for(once)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    give_embeddings(network, pieces)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_words_added_after_marks_disturb_no_id(tokenizer, tmp_path):
    """An added token outside the vocabulary would get the number of the next new word when the file is loaded."""
    once, _ = with_new_tokens(tokenizer, [], ["[NAME]", "[DATE]"])
    twice, _ = with_new_tokens(once, ["hyperkalemia"], ["[NAME]", "[PLACE]"])
    expected = ids(twice, "[NAME] [DATE] [PLACE] hyperkalemia")
    assert len(set(expected)) == 4 and expected[:2] == ids(once, "[NAME] [DATE]")
    save_network(network_for(twice), twice, tmp_path)
    for loaded in (load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert ids(loaded, "[NAME] [DATE] [PLACE] hyperkalemia") == expected
        assert len(loaded) == len(twice)


def test_a_unigram_vocabulary_takes_marks_and_refuses_words(tmp_path):
    unigram = train_unigram(TEXTS, 100, 64)
    with pytest.raises(RequestError, match=r"only a WordPiece vocabulary.*this is a Unigram"):
        with_new_tokens(unigram, ["hyperkalemia"], [])
    extended, pieces = with_new_tokens(unigram, [], ["[NAME]"])
    [number] = pieces
    assert number in ids(extended, "the [NAME] has a fever")
    save_tokenizer(extended, tmp_path, 64, has_types=False)
    assert ids(load_tokenizer(tmp_path), "the [NAME]") == ids(extended, "the [NAME]")


@pytest.mark.parametrize(
    ("words", "marks", "told"),
    [
        (
            ["fever", "covid-19", "heart failure"],
            [],
            "found 2 which .*: 'covid-19', 'heart failure'",
        ),
        ([" "], [], "new_tokens, protected_tokens: .* found a blank one"),
        ([], [""], "found a blank one"),
        ([], ["\u0007"], "found a blank one"),
    ],
)
def test_what_cannot_be_one_token_is_refused(tokenizer, words, marks, told):
    with pytest.raises(RequestError, match=told):
        with_new_tokens(tokenizer, words, marks)


def test_words_are_read_from_a_list_or_a_file(tmp_path):
    (tmp_path / "words.txt").write_text("hyperkalemia\n\n  sepsis \n", encoding="utf-8")
    assert read_words(InputFile(tmp_path / "words.txt")) == ["hyperkalemia", "sepsis"] != read_words(["fever"])
    with pytest.raises(RequestError, match=r"protected_tokens: expected a text file.*FileNotFoundError at .*none\.txt"):
        read_words(InputFile(tmp_path / "none.txt"))
