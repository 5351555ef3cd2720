"""Tokenizers of model folders: loaded as their files define them, checked, truncated and saved for every version.

transformers 5 rebuilds a tokenizer by its class, which can drop the normalizer of tokenizer.json. So tokenizer.json is
used as it is, and the files to save are written by hand.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.model.files import Description, fail_with, read_model_file
from bertrelay.progress import log

NORMALIZER_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
SOME_TEXT = "a 1 . 的 가"  # any vocabulary has a token of it
CASED_FRACTION = 0.01  # an uncased vocabulary has hardly a token with a capital, a cased one thousands
SPARE_FRACTION = 0.01  # some models round their embeddings up; many without a token belong to another vocabulary
CHARACTERS_A_TOKEN = 1_000  # far more than any token has, with white space around it
SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "model")  # of a tokenizer.json

TokenText = Annotated[str, Field(min_length=1)]


class _AddedToken(Description):
    content: TokenText


class _SpecialTokens(Description):
    unk_token: TokenText | _AddedToken | None = None
    sep_token: TokenText | _AddedToken | None = None
    pad_token: TokenText | _AddedToken | None = None
    cls_token: TokenText | _AddedToken | None = None
    mask_token: TokenText | _AddedToken | None = None
    bos_token: TokenText | _AddedToken | None = None
    eos_token: TokenText | _AddedToken | None = None
    additional_special_tokens: list[TokenText | _AddedToken] | None = None


class _TokenizerConfig(_SpecialTokens):
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    model_max_length: Annotated[int | float, Field(ge=1)] | None = None
    padding_side: Literal["left", "right"] | None = None
    truncation_side: Literal["left", "right"] | None = None


def load_tokenizer(folder: Path, lower_case: bool = False) -> PreTrainedTokenizerFast:
    """The tokenizer of `folder`: tokenizer.json as it is, else built from the vocabulary.

    lower_case: lower-case before everything else, as `do_lower_case` of sentence-transformers requests.
    """
    settings = read_model_file(folder / "tokenizer_config.json", _TokenizerConfig) or _TokenizerConfig()
    read_model_file(folder / "special_tokens_map.json", _SpecialTokens)
    read_model_file(folder / "added_tokens.json", dict[str, int])
    with fail_with(
        lambda error: (
            f"expected a tokenizer in {folder} (tokenizer.json, vocab.txt, …), found none that can be read "
            f"({type(error).__name__})"
        )
    ):
        tokenizer = _load_by_class(folder, settings)
        rules = _read_rules(folder / "tokenizer.json") or tokenizer.backend_tokenizer
        rules.no_padding()
        rules.no_truncation()
        if isinstance(rules.normalizer, normalizers.BertNormalizer):  # decided by tokenizer_config.json
            for key, name in NORMALIZER_SETTINGS.items():
                value = getattr(settings, key)
                if value is not None or (key == "strip_accents" and key in settings.model_fields_set):
                    setattr(rules.normalizer, name, value)
        _check_encodes(rules, folder)
        if lower_case:
            before = [rules.normalizer] if rules.normalizer else []
            rules.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
        fast = as_fast(rules, tokenizer)
    warn_of_special_tokens(fast)
    return fast


def warn_of_special_tokens(tokenizer: PreTrainedTokenizerFast, pairs: bool = False) -> None:
    """Warns when the tokenizer has a [CLS] or [SEP] and does not add it to a text, or to a pair of texts."""
    added = tokenizer.backend_tokenizer.encode("", "" if pairs else None).tokens
    lacking = [token for token in (tokenizer.cls_token, tokenizer.sep_token) if token and token not in added]
    if lacking:
        log(
            f"model: warning: the tokenizer adds no {' or '.join(map(str, lacking))} to a "
            f"{'pair of texts' if pairs else 'text'}; check that the model was trained so, or copy the folder again"
        )


def _load_by_class(folder: Path, settings: _TokenizerConfig) -> PreTrainedTokenizerBase:
    vocabulary, casing = folder / "vocab.txt", {}
    if vocabulary.is_file() and settings.do_lower_case is None:  # cased is one with a capital letter beside [PAD] …
        words = (word for word in vocabulary.read_text(encoding="utf-8").splitlines() if not word.startswith("["))
        casing["do_lower_case"] = all(word == word.lower() for word in words)
    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **casing)
    return cast(PreTrainedTokenizerBase, loaded)


def _read_rules(file: Path) -> Tokenizer | None:
    """The rules of a tokenizer.json; None without such a file."""
    if not file.is_file():
        return None
    content = file.read_bytes()
    lacking = [name for name in SECTIONS if f'"{name}"'.encode() not in content]  # the library writes all, or null
    if lacking:
        raise RequestError(f"model: expected {', '.join(lacking)} in {file}, found none; copy the folder again")
    return Tokenizer.from_buffer(content)


def _check_encodes(rules: Tokenizer, folder: Path) -> None:
    """Raises RequestError for rules whose parts do not fit one another, or that drop the text."""
    try:  # the library panics when a template names a missing token
        single, first, second, empty = (
            len(rules.encode(*texts).ids) for texts in ((SOME_TEXT, None), (SOME_TEXT, ""), ("", SOME_TEXT), ("", ""))
        )
        if single <= len(rules.encode("").ids) or min(first, second) <= empty:
            raise ValueError("text without a token")
    except BaseException as error:  # a panic is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise RequestError(f"model: the parts of the tokenizer in {folder} do not fit one another") from error
        raise


def as_fast(rules: Tokenizer, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """A tokenizer with these rules, and otherwise (special tokens, lengths, sides) like `tokenizer`."""
    build: Any = PreTrainedTokenizerFast  # its constructor has no types
    fast: PreTrainedTokenizerFast = build(
        tokenizer_object=rules,
        model_max_length=int(tokenizer.model_max_length),
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **_special_tokens(tokenizer),
    )
    return fast


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    return {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}


def plain_rules(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer's rules that neither truncates nor pads: the caller's tokenizer stays as it is."""
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_truncation()
    rules.no_padding()
    return rules


def count_subwords(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> int:
    """The number of subwords of all `texts`, without special tokens; unknown ones count as their characters."""
    encodings = plain_rules(tokenizer).encode_batch(list(texts), add_special_tokens=False)
    return sum(
        end - start if number == tokenizer.unk_token_id else 1
        for encoding in encodings
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
    )


def before_sentences(rules: Tokenizer) -> str:
    """The prefix that marks the first word of a sentence as the start of one: a space for byte-level rules."""
    bare, after_space = (rules.encode(text, add_special_tokens=False).tokens[:1] for text in ("a", " a"))
    return " " if "Ġ" in "".join(after_space) and "Ġ" not in "".join(bare) else ""


def lowers_case(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer lower-cases text."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and bool(normalizer.normalize_str("A") == "a")


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, embedding_rows: int) -> None:
    """Raises RequestError for too few embeddings, or a cased vocabulary of a tokenizer that lower-cases.

    Warns of many embeddings without a token.
    """
    if len(tokenizer) > embedding_rows:
        raise RequestError(
            f"base: the vocabulary does not fit the model: {len(tokenizer):,} tokens, and embeddings for "
            f"{embedding_rows:,} of them. Take the tokenizer that the model was trained with."
        )
    if len(tokenizer) < (1 - SPARE_FRACTION) * embedding_rows:
        log(
            f"base: the model has embeddings for {embedding_rows:,} tokens and the tokenizer only {len(tokenizer):,}; "
            "check that they belong together"
        )
    pieces = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).keys() - set(tokenizer.all_special_tokens)
    cased = sum(piece != piece.lower() for piece in pieces)
    if lowers_case(tokenizer) and cased > CASED_FRACTION * len(pieces):
        raise RequestError(
            f"base: the tokenizer lower-cases text, and {cased:,} of its {len(pieces):,} tokens have capitals, which "
            "would never be met. The vocabulary is a cased one: set do_lower_case to false in tokenizer_config.json."
        )


def truncating(tokenizer: PreTrainedTokenizerFast, max_tokens: int, sentences: int = 1) -> Tokenizer:
    """A copy of the tokenizer's rules that truncates at `max_tokens`; the caller's tokenizer does not change.

    Raises RequestError if the special tokens leave no room for a token of every one of `sentences` in an input.
    """
    rules = plain_rules(tokenizer)
    needed = len(rules.encode("", "" if sentences == 2 else None).ids) + sentences
    if max_tokens < needed:
        raise RequestError(
            f"max_tokens: expected {needed} or more, as there are {needed - sentences} special tokens, found "
            f"{max_tokens}; raise it, or max_seq_length or model_max_length in the model's folder"
        )
    rules.enable_truncation(max_tokens, direction=tokenizer.truncation_side)
    return rules


def shortened(texts: Sequence[str], max_tokens: int, side: str = "right") -> Sequence[str]:
    """Cuts `texts` at characters that no token within `max_tokens` reaches: a tokenizer needs 80 bytes a character.

    side: where an input is truncated. Logs the number of texts that were cut.
    """
    limit = max_tokens * CHARACTERS_A_TOKEN
    if all(len(text) <= limit for text in texts):
        return texts
    count = sum(len(text) > limit for text in texts)
    log(f"texts of more than {limit:,} characters are cut there before they are tokenized: {count:,}")
    return [text[:limit] if side == "right" else text[-limit:] for text in texts]


def pad_id_of(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """The padding token: the tokenizer's, else the network's, else 0, which the attention mask hides.

    Raises RequestError for a token without an embedding.
    """
    candidates = (tokenizer.pad_token_id, network.config.pad_token_id, 0)
    pad_id, rows = int(next(value for value in candidates if value is not None)), network.config.vocab_size
    if pad_id >= rows:
        raise RequestError(
            f"model: expected a padding token among the {rows:,} that the network has embeddings for, found number "
            f"{pad_id:,}; correct pad_token in the tokenizer's files"
        )
    return pad_id


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path, max_tokens: int, has_types: bool) -> None:
    """Writes the tokenizer so that it gives the same ids here and in transformers 4 and 5.

    The files are written by hand: under another class name than PreTrainedTokenizerFast some version rebuilds or cannot
    load it, and the list of extra special tokens of transformers 5 breaks transformers 4.
    has_types: the network has token types for a first and a second text; other networks fail on them.
    """
    plain_rules(tokenizer).save(str(folder / "tokenizer.json"))
    special = _special_tokens(tokenizer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "model_input_names": [name for name in tokenizer.model_input_names if has_types or name != "token_type_ids"],
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings | special)
    write_json(folder / "special_tokens_map.json", special)
