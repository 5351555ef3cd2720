"""New encoders: a vocabulary trained on a corpus (WordPiece as BERT's, unigram as XLM-R's) and random weights.

SentencePiece trains the pieces, because it gives the same ones for the same corpus every time (the trainers of
`tokenizers` iterate over hash maps in random order); `tokenizers` then splits text with them.
"""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.model.network import position_table, unused_positions
from bertrelay.model.settings import NewEncoder
from bertrelay.progress import spinner

BERT_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
XLMR_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as XLM-R has them; <mask> comes last
WORD_START = "▁"
LONGEST_TEXT = 2**24  # bytes; SentencePiece skips longer ones
THREADS = 2  # changes the last digits of the result, so it is the same on every machine


def train_wordpiece(
    texts: Iterable[str], size: int, max_tokens: int, lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """A BERT tokenizer whose WordPiece vocabulary of at most `size` pieces is trained by byte-pair merges.

    Raises RequestError for a size that leaves out some of the characters of the texts, first in a word or inside.
    """
    bare = _bert_shaped(models.WordPiece(unk_token="[UNK]"), lowercase)

    firsts, inner = set[str](), set[str]()

    def words(text: str) -> str:
        split = [word for word, _ in bare.pre_tokenizer.pre_tokenize_str(bare.normalizer.normalize_str(text))]
        for word in split:
            firsts.add(word[0])
            inner.update(word[1:])
        return " ".join(split)

    trained = _train(map(words, texts), size, len(BERT_SPECIALS), "bpe")
    pieces = [
        piece[1:] if piece.startswith(WORD_START) else f"##{piece}" for piece, _ in trained if piece != WORD_START
    ]
    characters = sorted({piece for piece in pieces if len(piece.removeprefix("##")) == 1})
    starts = [piece.removeprefix("##") for piece in characters]  # any character may begin a word
    ordered = list(dict.fromkeys([*BERT_SPECIALS, *starts, *characters, *pieces]))
    if unknown := (firsts | {f"##{character}" for character in inner}).intersection(ordered[size:]):
        raise _too_small(size, 1 + max(number for number, piece in enumerate(ordered) if piece in unknown))
    vocabulary = {piece: index for index, piece in enumerate(ordered[:size])}
    tokenizer = _bert_shaped(models.WordPiece(vocabulary, unk_token="[UNK]"), lowercase)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT_SPECIALS, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_tokens, model_input_names=BERT_INPUTS, **names
    )


@spinner("training the vocabulary")
def train_unigram(texts: Iterable[str], size: int, max_tokens: int) -> PreTrainedTokenizerFast:
    """An XLM-R tokenizer whose unigram vocabulary of at most `size` pieces is trained on `texts`.

    Raises RequestError for a size that leaves out some of the characters of the texts.
    """
    normalizer = _xlmr_shaped(models.Unigram()).normalizer
    trained = _train((normalizer.normalize_str(text) for text in texts), size, len(XLMR_SPECIALS) + 1, "unigram")
    pieces = [*((piece, 0.0) for piece in XLMR_SPECIALS), *trained, ("<mask>", 0.0)]
    tokenizer = _xlmr_shaped(models.Unigram(pieces, unk_id=XLMR_SPECIALS.index("<unk>")))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, XLMR_SPECIALS.index(token)) for token in ("<s>", "</s>")],
    )
    first, pad, last, unknown = XLMR_SPECIALS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        bos_token=first,
        cls_token=first,
        eos_token=last,
        sep_token=last,
        pad_token=pad,
        unk_token=unknown,
        mask_token="<mask>",
    )


def bert_config(size: NewEncoder, tokenizer: PreTrainedTokenizerFast) -> BertConfig:
    """The configuration of a new BERT of this size."""
    return BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=size.max_tokens,
        pad_token_id=tokenizer.pad_token_id,
        # BERT's 0.02 at BERT's 768 dimensions, so that the sums in a layer stay as large in a narrow network, whose
        # attention otherwise takes far longer to train.
        initializer_range=float(0.02 * (768 / size.dim) ** 0.5),
        **layer_sizes(size),
    )


def layer_sizes(size: NewEncoder) -> dict[str, Any]:
    """The fields of BERT's or XLM-R's configuration for the sizes and dropout of the layers."""
    return {
        "hidden_size": size.dim,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.feed_forward or 4 * size.dim,
        "hidden_dropout_prob": size.dropout,
        "attention_probs_dropout_prob": size.dropout,
    }


def new_network(kind: type[PreTrainedModel], config: PreTrainedConfig, size: NewEncoder, seed: int) -> PreTrainedModel:
    """A network of random weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = kind(config)
    start_positions(network, size)
    return network


def start_positions(network: PreTrainedModel, size: NewEncoder) -> None:
    """Initializes the position embeddings of a new network by `size.positions`, in the range of its other weights."""
    table = position_table(network)
    if size.positions is None or table is None:
        return
    first, dim = unused_positions(network), table.embedding_dim
    positions = torch.arange(table.num_embeddings - first)
    rates = 10_000.0 ** -(torch.arange(0, dim, 2) / dim)
    angles = positions[:, None] * rates  # (positions, pairs of dimensions)
    sinusoids = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim]  # (positions, dim)
    with torch.no_grad():
        table.weight[first:] = sinusoids * (network.config.initializer_range * 2**0.5)


def _too_small(size: int, needed: int) -> RequestError:
    return RequestError(
        f"vocabulary: expected at least {needed:,} pieces, which the characters of the text need, found {size:,}; "
        "raise it, or leave out text in rare scripts"
    )


def _train(texts: Iterator[str], size: int, specials: int, kind: str) -> list[tuple[str, float]]:
    """Pieces and their scores, best first; fewer than `size`, with `specials`, from a corpus too small for them."""
    texts = (text for text in texts if text)
    first = next(texts, None)
    if first is None:
        raise RequestError("expected text to train a vocabulary on, found none")
    model, raised = io.BytesIO(), list[BaseException]()

    def note_errors() -> Iterator[str]:
        try:
            yield first
            yield from texts
        except BaseException as error:  # Ctrl-C among them
            raised.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=note_errors(),
            model_writer=model,
            model_type=kind,
            vocab_size=size - specials + 1,  # its unknown piece counts
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=LONGEST_TEXT,
            num_threads=THREADS,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:  # SentencePiece's, also in place of an error of reading the texts
        needed = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
        if raised or needed is None:
            raise (raised or [error])[0] from None
        pieces = int(needed[1]) - 1  # without its unknown one: the start of words, and the characters
        raise _too_small(size, specials + (2 * (pieces - 1) if kind == "bpe" else pieces)) from None
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(trained.id_to_piece(i), trained.get_score(i)) for i in range(len(trained)) if not trained.is_unknown(i)]


def _bert_shaped(model: models.WordPiece, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _xlmr_shaped(model: models.Unigram) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer
