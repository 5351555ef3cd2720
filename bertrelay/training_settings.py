"""The settings of every training, wherever it runs; free of torch, so that `plan` and `--help` stay quick."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import RUN_ONLY, Settings

Positive = Annotated[int, Field(ge=1)]


class TrainingSettings(Settings):
    """How a model learns. Every stage that trains has these keys beside its own."""

    seed: int = 0
    epochs: Positive = 1
    batch_tokens: Positive | None = None
    """Real tokens a step learns from; this or `batch_items`."""
    batch_items: Positive | None = None
    """Items (sentences, pairs, triplets) a step learns from; this or `batch_tokens`."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of all steps in which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    evaluate_every: Positive | None = None
    """Steps between looks at the dev data; once an epoch when absent."""
    patience: Positive | None = None
    """Stop after this many looks at the dev data without a better score."""
    deterministic: bool = False
    """Only deterministic GPU algorithms: a resumed run is then exact on a GPU too, and slower."""
    device_tokens: Annotated[Positive, RUN_ONLY] = 16_384
    """Padded tokens that go through the model at once: about memory, never about what is learnt."""
    checkpoint_every: Annotated[Positive, RUN_ONLY] = 500
    log_every: Annotated[Positive, RUN_ONLY] = 20
    tracker: Annotated[Literal["tensorboard", "wandb", "mlflow"] | None, RUN_ONLY] = None

    @model_validator(mode="before")
    @classmethod
    def _given_budget_replaces_default(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        others = {"batch_tokens": "batch_items", "batch_items": "batch_tokens"}
        return {**{other: None for name, other in others.items() if given.get(name) is not None}, **given}

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if (self.batch_tokens is None) == (self.batch_items is None):
            raise ValueError("expected exactly one of batch_tokens and batch_items")
        return self
