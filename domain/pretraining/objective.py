"""What is learnt: masked words, whose head is computed where words are masked and nowhere else, and next sentences."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, float32, nn, promote_types
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from domain.pretraining.settings import Objective

LABELS: dict[Objective, str] = {"mlm": "masked_ids", "nsp": "is_random"}
"""Where the inputs of a batch hold what each objective is to tell."""


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
            hidden = output.last_hidden_state.flatten(0, 1)  # (batch · tokens, dim)
            logits["mlm"] = word_logits(network, hidden[inputs["masked"]])
        if "nsp" in self.objectives:
            logits["nsp"] = network.cls.seq_relationship(output.pooler_output)
        return logits


def word_logits(network: Any, hidden: Tensor) -> Tensor:
    """What the language-model head of `network` makes of vectors (n, dim): logits (n, vocabulary)."""
    match network.config.model_type:
        case "bert":
            logits: Tensor = network.cls.predictions(hidden)
        case "distilbert":
            transformed = network.activation(network.vocab_transform(hidden))  # (n, dim)
            logits = network.vocab_projector(network.vocab_layer_norm(transformed))
        case _:
            logits = network.lm_head(hidden)
    return logits


def losses(logits: Mapping[Objective, Tensor], inputs: Mapping[str, Tensor]) -> dict[Objective, Tensor]:
    """Cross-entropy in nats: `mlm` of each masked token, (masked,), and `nsp` of each pair, (batch,)."""
    return {
        name: cross_entropy(each.to(promote_types(each.dtype, float32)), inputs[LABELS[name]], reduction="none")
        for name, each in logits.items()
    }
