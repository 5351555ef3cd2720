"""Static encoders: a table with a vector for each token; the vector of a text is their mean. No network is computed.

In folders it is the module `StaticEmbedding` of sentence-transformers, or model2vec's form, whose rows may be of 8 bits
with a weight for each token. A longer vector counts more in the mean, so that the weights of tokens are lengths here.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model.files import fail_with
from bertrelay.model.folder import CONFIG
from bertrelay.model.network import read_weights
from bertrelay.model.tokenizer import plain_rules

LONGEST = 8_192
"""Tokens of the longest input. More would cost little; but batches are planned by it."""
WEIGHTS_FILE, TOKENIZER_FILE = "model.safetensors", "tokenizer.json"
TABLE = "embedding.weight"
INT8_TABLE, TOKEN_WEIGHTS, ROW_OF_TOKEN = "embeddings", "weights", "mapping"  # model2vec's
PADDING = ("<pad>", "[PAD]", "<|pad|>")
INT8_LIMIT = 127


class StaticNetwork(nn.Module):
    """A table of token vectors in place of a network: it has a config and gives token vectors, as an encoder needs.

    table: float32 (tokens, dim). The vector of the padding token becomes 0: it is that of a text without tokens.
    """

    def __init__(self, table: Tensor, pad_id: int, name: str = "") -> None:
        super().__init__()
        tokens, dim = table.shape
        self.embedding = nn.Embedding(tokens, dim, _weight=table)
        with torch.no_grad():
            self.embedding.weight[pad_id] = 0
        build: Any = PreTrainedConfig  # its arguments have no types
        self.config = build(vocab_size=tokens, hidden_size=dim, pad_token_id=pad_id, num_hidden_layers=0)
        self.config.max_position_embeddings = LONGEST
        self.config.model_type, self.name_or_path = "static", name
        self.train(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:  # noqa: ARG002 (the pooling's)
        """(batch, tokens) -> an output whose `last_hidden_state` is (batch, tokens, dim)."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding


def static_tokenizer(rules: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer with these rules that adds no special token."""
    document = json.loads(rules.to_str())
    padding = next((token for token in PADDING if rules.token_to_id(token) is not None), None)
    build: Any = PreTrainedTokenizerFast  # its constructor has no types
    tokenizer: PreTrainedTokenizerFast = build(
        tokenizer_object=Tokenizer.from_str(json.dumps({**document, "post_processor": None})),
        model_max_length=LONGEST,
        **({"pad_token": padding} if padding else {}),
    )
    return tokenizer


def static_network(table: Tensor, tokenizer: PreTrainedTokenizerFast, name: str = "") -> StaticNetwork:
    """The network of a table with a row for each token of a `static_tokenizer`."""
    if tokenizer.pad_token_id is not None:
        return StaticNetwork(table, int(tokenizer.pad_token_id), name)
    return StaticNetwork(torch.cat([table, table.new_zeros(1, table.shape[1])]), len(table), name)


def load_static(folder: Path) -> tuple[StaticNetwork, PreTrainedTokenizerFast]:
    """The table of a folder in float32, and its tokenizer.

    Raises RequestError for files that are missing, or do not fit each other.
    """
    with fail_with(lambda error: f"expected a tokenizer in {folder / TOKENIZER_FILE} ({type(error).__name__})"):
        rules = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        rules.no_padding()
        rules.no_truncation()
        tokenizer = static_tokenizer(rules)
    weights = read_weights(folder)
    table = weights.get(TABLE, weights.get(INT8_TABLE))
    if table is None or table.ndim != 2:
        raise RequestError(
            f"model: expected a table of vectors named {TABLE} or {INT8_TABLE} in {folder / WEIGHTS_FILE}, found "
            f"{', '.join(sorted(weights)) or 'none'}; copy the folder again"
        )
    rows, factors = weights.get(ROW_OF_TOKEN), weights.get(TOKEN_WEIGHTS)
    if rows is not None and (not len(rows) or int(rows.min()) < 0 or int(rows.max()) >= len(table)):
        raise RequestError(
            f"model: expected rows of its table in {ROW_OF_TOKEN} of {folder / WEIGHTS_FILE}, found others"
        )
    table = table.float() if rows is None else table[rows.long()].float()  # (tokens, dim)
    if len(table) != len(tokenizer) or (factors is not None and len(factors) != len(table)):
        raise RequestError(
            f"model: expected a vector and a weight for each of the {len(tokenizer):,} tokens in {folder}, found "
            f"{len(table):,} vectors{'' if factors is None else f' and {len(factors):,} weights'}; copy it again"
        )
    if factors is not None:
        table = table * factors.float()[:, None]
    return static_network(table, tokenizer, str(folder)), tokenizer


def save_static(network: StaticNetwork, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes the table and the tokenizer, as `StaticEmbedding` of sentence-transformers has them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)  # of a network, or of model2vec's form
    plain_rules(tokenizer).save(str(folder / TOKENIZER_FILE))
    write_tensors(folder / WEIGHTS_FILE, {TABLE: network.embedding.weight[: len(tokenizer)]}, {"format": "pt"})


def round_static(folder: Path, *, normalize: bool, has_projection: bool) -> None:
    """Rounds the table of a saved folder to 8 bits, with a weight for each token: model2vec's form.

    A row is stored as the whole numbers nearest to 127 · row / its largest absolute element. sentence-transformers 6
    reads it, and model2vec does unless the vectors have a projection, which model2vec does not know.
    """
    table = read_weights(folder)[TABLE].float()  # (tokens, dim)
    factors = table.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / INT8_LIMIT  # (tokens,)
    rounded = (table / factors[:, None]).round().to(torch.int8)
    write_tensors(folder / WEIGHTS_FILE, {INT8_TABLE: rounded, TOKEN_WEIGHTS: factors}, {"format": "pt"})
    if not has_projection:
        form = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": normalize}
        write_json(folder / CONFIG, {**form, "hidden_dim": table.shape[1], "embedding_dtype": "int8"})
