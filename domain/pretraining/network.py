"""The network with heads for masked words and next sentences, and new tokens for words of a domain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from torch import Tensor, float32, nn, promote_types
from torch.nn.functional import cross_entropy
from transformers import AutoModelForPreTraining, BertForPreTraining, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.data.encodings import conversion_hint
from bertrelay.errors import RequestError
from bertrelay.inference.kernels import use_cpu_kernels
from bertrelay.model.folder import ModelFolder
from bertrelay.model.network import has_types, load_network, position_limit, refuse_missing
from bertrelay.model.new import bert_config, start_positions, train_wordpiece
from bertrelay.model.settings import NewEncoder
from bertrelay.model.tokenizer import as_fast, check_vocabulary, load_tokenizer, plain_rules
from bertrelay.progress import log
from bertrelay.settings import InputFile
from domain.pretraining.documents import files_of, read_all
from domain.pretraining.pubmed import outdated
from domain.pretraining.settings import Objective, PretrainSettings
from domain.reading import TextDocument

LABELS: dict[Objective, str] = {"mlm": "masked_ids", "nsp": "is_random"}
"""The inputs of a batch with the labels of each objective."""


class Pretraining(nn.Module):
    """A network with heads, called for the logits of its objectives."""

    def __init__(self, network: PreTrainedModel, objectives: list[Objective]) -> None:
        super().__init__()
        self.network, self.objectives = network, objectives

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[Objective, Tensor]:
        """`mlm`: (masked, vocabulary); `nsp`: (batch, 2), 0 for the next segment and 1 for a random one.

        inputs: those of a batch that `Sequences` makes.
        """
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if "nsp" in self.objectives else [])]
        network: Any = self.network
        output = network.base_model(**{name: inputs[name] for name in names})
        logits: dict[Objective, Tensor] = {}
        if "mlm" in self.objectives:
            hidden = output.last_hidden_state.flatten(0, 1)[inputs["masked"]]  # (masked, dim)
            match network.config.model_type:
                case "bert":
                    logits["mlm"] = network.cls.predictions(hidden)
                case "distilbert":
                    transformed = network.activation(network.vocab_transform(hidden))  # (masked, dim)
                    logits["mlm"] = network.vocab_projector(network.vocab_layer_norm(transformed))
                case _:
                    logits["mlm"] = network.lm_head(hidden)
        if "nsp" in self.objectives:
            logits["nsp"] = network.cls.seq_relationship(output.pooler_output)
        return logits


def losses(logits: Mapping[Objective, Tensor], inputs: Mapping[str, Tensor]) -> dict[Objective, Tensor]:
    """Cross-entropy in nats: `mlm` of each masked token, (masked,), and `nsp` of each pair, (batch,)."""
    return {
        name: cross_entropy(scores.to(promote_types(scores.dtype, float32)), inputs[LABELS[name]], reduction="none")
        for name, scores in logits.items()
    }


OldSubwords = dict[int, list[int]]
"""The id of each new token, and the ids of the subwords that its text had before."""
HEADS: dict[str, dict[Objective, tuple[str, ...]]] = {
    "bert": {"mlm": ("cls.predictions",), "nsp": ("bert.pooler", "cls.seq_relationship")},
    "distilbert": {"mlm": ("vocab_transform", "vocab_layer_norm", "vocab_projector")},
    **{kind: {"mlm": ("lm_head",)} for kind in ("roberta", "xlm-roberta", "camembert", "mpnet")},
}
"""Parameters that only one objective uses, by kind of network."""
POOLER = "bert.pooler.dense.weight"
NAMES: dict[Objective, str] = {"mlm": "masked words", "nsp": "next sentences"}


def start_network(settings: PretrainSettings, cache: Cache) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The network before its first step, with a head for each objective, and its tokenizer, with the new tokens.

    Raises RequestError for a base without heads for these objectives, with fewer positions than `max_tokens`, or with
    a tokenizer that does not fit it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if isinstance(settings.base, NewEncoder):
            files = [(source, file) for source in settings.documents for file in files_of(source)]
            texts = (item.text for item in read_all(files, outdated(files)) if isinstance(item, TextDocument))
            size = settings.base
            tokenizer = train_wordpiece(texts, size.vocabulary, size.max_tokens, lowercase=not size.cased)
            network: PreTrainedModel = BertForPreTraining(bert_config(size, tokenizer))
            start_positions(network, size)
        else:
            network, tokenizer = _load(settings.base, settings.objectives, cache)
    check_vocabulary(tokenizer, network.config.vocab_size)
    words, marks = read_words(settings.new_tokens), read_words(settings.protected_tokens)
    tokenizer, subwords = with_new_tokens(tokenizer, words, marks)
    give_embeddings(network, subwords)
    positions = position_limit(network)
    if positions is not None and settings.max_tokens > positions:
        raise RequestError(
            f"max_tokens: expected at most {positions}, the positions of the network, found {settings.max_tokens}"
        )
    heads = HEADS[network.config.model_type]
    idle = tuple(prefix for name in heads.keys() - set(settings.objectives) for prefix in heads[name])
    for name, parameter in network.named_parameters():
        if name.startswith(idle):
            parameter.requires_grad_(False)
    use_cpu_kernels(network)
    return network, tokenizer


def _load(source: str, objectives: list[Objective], cache: Cache) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    model = ModelFolder.find(source, cache=cache)
    folder = model.transformer
    network, missing = load_network(folder, AutoModelForPreTraining)
    kind = network.config.model_type
    if kind not in HEADS:
        raise RequestError(f"base: expected one of {', '.join(HEADS)}, found {kind!r}, which no head is known for here")
    if "nsp" in objectives and ("nsp" not in HEADS[kind] or not has_types(network)):
        raise RequestError(
            "objectives: next sentences need a BERT that has token types for two segments, and the base is a "
            f"{kind!r} that has not; set objectives = ['mlm']"
        )
    heads = HEADS[kind]
    refuse_missing(folder.path, {name for name in missing if not any(name.startswith(head) for head in heads.values())})
    if "nsp" in objectives and not network.get_parameter(POOLER).any():  # as saved for a network that never had one
        nn.init.normal_(network.get_parameter(POOLER), std=network.config.initializer_range)
        missing.add(POOLER)
    for objective in objectives:
        if any(name.startswith(heads[objective]) for name in missing):
            log(f"base: {source} has no whole head for {NAMES[objective]}; what is missing of it starts fresh")
    return network, load_tokenizer(folder.path, model.layout.lower_case)


def read_words(words: list[str] | InputFile) -> list[str]:
    """The words of a setting, or of a file with one in each line; empty lines are skipped."""
    if isinstance(words, list):
        return words
    try:
        lines = Path(words).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        conversion = conversion_hint(words, error.object) if isinstance(error, UnicodeDecodeError) else ""
        raise RequestError(
            f"new_tokens, protected_tokens: expected a text file in UTF-8, found {type(error).__name__} at "
            f"{words}{conversion}"
        ) from error
    return [line.strip() for line in lines if line.strip()]


def with_new_tokens(
    tokenizer: PreTrainedTokenizerFast, words: Sequence[str], marks: Sequence[str]
) -> tuple[PreTrainedTokenizerFast, OldSubwords]:
    """A tokenizer in which every word and mark is one token; one that is a token already stays as it is.

    words: words of text; they join a WordPiece vocabulary, and are subwords of longer words too.
    marks: tokens such as `[NAME]`, which are matched before text is cut into words, and are never masked.
    Raises RequestError for words that the vocabulary cannot hold.
    """
    old, rules = plain_rules(tokenizer), plain_rules(tokenizer)
    if any(not old.encode(text, add_special_tokens=False).ids for text in (*words, *marks)):
        raise RequestError("new_tokens, protected_tokens: expected text that gives tokens, found a blank one")
    if isinstance(rules.model, WordPiece):
        rules.model = _with_words(rules, words, marks)
    elif words:
        kind = type(rules.model).__name__
        raise RequestError(
            f"new_tokens: only a WordPiece vocabulary, as BERT has it, takes new words; this is a {kind}"
        )
    rules.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    new = rules.get_vocab().items() - old.get_vocab().items()
    if words or marks:
        total = f"{len(words) + len(marks):,} new tokens and protected tokens"
        log(f"vocabulary: {len(new):,} of {total} are added, the others exist already")
    return as_fast(rules, tokenizer), {number: old.encode(text, add_special_tokens=False).ids for text, number in new}


def _with_words(rules: Tokenizer, words: Sequence[str], marks: Sequence[str]) -> WordPiece:
    """The vocabulary with words, as it normalizes them, and marks at its end.

    All added tokens are in it, or they would get other ids on loading. Raises RequestError for words that the
    tokenizer cuts before it searches its vocabulary.
    """
    normalizer, cut = rules.normalizer, rules.pre_tokenizer
    normalized = [normalizer.normalize_str(word) if normalizer else word for word in words]
    broken = [word for word, text in zip(words, normalized, strict=True) if len(cut.pre_tokenize_str(text)) != 1]
    if broken:
        raise RequestError(
            f"new_tokens: expected single words, found {len(broken):,} which the tokenizer cuts at spaces or signs "
            f"before it searches its vocabulary: {', '.join(map(repr, broken[:5]))}{', …' if len(broken) > 5 else ''}"
        )
    vocabulary = rules.get_vocab(with_added_tokens=True)
    first = max(vocabulary.values()) + 1
    fresh = [word for word in dict.fromkeys([*normalized, *marks]) if word not in vocabulary]
    return WordPiece(
        vocab={**vocabulary, **{word: number for number, word in enumerate(fresh, first)}},
        unk_token=rules.model.unk_token,
        max_input_chars_per_word=rules.model.max_input_chars_per_word,
        continuing_subword_prefix=rules.model.continuing_subword_prefix,
    )


@torch.no_grad()
def give_embeddings(network: PreTrainedModel, subwords: OldSubwords) -> None:
    """Gives each new token, in `network`, the mean embedding and output bias of its old subwords."""
    if max(subwords, default=0) >= network.config.vocab_size:
        network.resize_token_embeddings(max(subwords) + 1, mean_resizing=False)
    tables: list[Any] = [network.get_input_embeddings(), network.get_output_embeddings()]
    for rows in (tables[0].weight, tables[1].weight, tables[1].bias):  # tied ones twice, which changes nothing
        for number, old in subwords.items():
            rows[number] = rows[old].mean(dim=0)
