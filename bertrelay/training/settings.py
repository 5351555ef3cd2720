"""The settings of every training. Free of torch, so that `plan` and `--help` stay fast."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import RUN_ONLY, Positive, Precision, Seed, Settings


class TrainingSettings(Settings):
    """Training of a model; every stage that trains has these keys beside its own."""

    seed: Seed = 0
    """Seed of weights, dropout and the order of examples."""
    epochs: Positive = 1
    """Passes over the training data."""
    batch_tokens: Positive | None = None
    """Batch size in real tokens; in place of `batch_items`."""
    batch_items: Positive | None = None
    """Batch size in items (sentences, pairs, triplets); in place of `batch_tokens`."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Learning rate of AdamW after the warm-up."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Decay of the learning rate to 0 after the warm-up; `constant` keeps it."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Fraction of all steps in which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay of matrices; biases and norms have none."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Norm to which gradients are clipped."""
    precision: Precision = "auto"
    """`auto` is bf16 where the device computes in it, else fp32; fp16 is for GPUs without bf16, and scales the
    gradient; tf32 is fp32 with faster matrix products, of NVIDIA GPUs from Ampere on. A stage that started on another
    machine resumes in the precision it started in."""
    evaluate_every: Positive | None = None
    """Steps between evaluations on the validation data; once an epoch when absent."""
    patience: Positive | None = None
    """Stop after this many evaluations without a better score."""
    deterministic: bool = False
    """Use deterministic GPU algorithms only, so that resuming is exact on a GPU too; slower."""
    device_tokens: Annotated[Positive, RUN_ONLY] = 16_384
    """Padded tokens of a micro-batch; fewer need less memory. One GPU takes up to a quarter more."""
    gradient_checkpointing: Annotated[bool, RUN_ONLY] = False
    """Compute a layer's activations a second time in the backward pass; less memory, slower by a third."""
    cuda_graphs: Annotated[bool, RUN_ONLY] = True
    """On one GPU, capture the passes of a network as CUDA graphs and replay them; several times as fast where batches
    are small, and more memory. Without effect with `gradient_checkpointing`."""
    checkpoint_every: Annotated[Positive, RUN_ONLY] = 500
    """Steps between checkpoints."""
    log_every: Annotated[Positive, RUN_ONLY] = 20
    """Steps between lines of the log."""
    tracker: Annotated[Literal["tensorboard", "wandb", "mlflow"] | None, RUN_ONLY] = None
    """Also log to a tracker, beside `metrics.jsonl`. wandb writes offline unless WANDB_MODE is set."""

    @model_validator(mode="before")
    @classmethod
    def _replace_default_size(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        others = {"batch_tokens": "batch_items", "batch_items": "batch_tokens"}
        return {**{other: None for name, other in others.items() if values.get(name) is not None}, **values}

    @model_validator(mode="after")
    def _check_one_size(self) -> Self:
        if (self.batch_tokens is None) == (self.batch_items is None):
            raise ValueError("expected exactly one of batch_tokens and batch_items")
        return self
