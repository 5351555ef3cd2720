"""The settings of every training. Free of torch, so that `plan` and `--help` stay fast."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import RUN_ONLY, Positive, Precision, Seed, Settings


class TrainingSettings(Settings):
    """How a model is trained. Every stage that trains has these keys beside its own.

    batch_tokens, batch_items: batch size, in real tokens or in items (sentences, pairs, triplets); one of the two.
    learning_rate: of AdamW, after the warm-up; `schedule` is how it decays to 0, or that it stays constant.
    warmup: share of all steps in which the learning rate rises from 0.
    weight_decay: of matrices; biases and norms have none.
    max_grad_norm: gradients are clipped to this norm.
    precision: `auto` is bf16 where the device computes in it, else fp32; fp16 is for GPUs without bf16, and scales the
        gradient; tf32 is fp32 with faster matrix products, of NVIDIA GPUs from Ampere on. A stage that started on
        another machine resumes in the precision it started in.
    evaluate_every: steps between evaluations on the validation data; once an epoch when absent.
    patience: stop after this many evaluations without a better score.
    deterministic: deterministic GPU algorithms only, so that resuming is exact on a GPU too; slower.

    The rest changes how the work is done and never its result:

    device_tokens: padded tokens of a micro-batch; fewer need less memory. One GPU takes up to a quarter more.
    gradient_checkpointing: compute a layer's activations again in the backward pass; less memory, slower by a third.
    cuda_graphs: on one GPU, capture the passes of a network as CUDA graphs and replay them; several times as fast where
        batches are small, and more memory. Not with gradient_checkpointing.
    checkpoint_every, log_every: in steps.
    tracker: also log to a tracker, beside `metrics.jsonl`. wandb writes offline unless WANDB_MODE is set.
    """

    seed: Seed = 0
    epochs: Positive = 1
    batch_tokens: Positive | None = None
    batch_items: Positive | None = None
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Precision = "auto"
    evaluate_every: Positive | None = None
    patience: Positive | None = None
    deterministic: bool = False
    device_tokens: Annotated[Positive, RUN_ONLY] = 16_384
    gradient_checkpointing: Annotated[bool, RUN_ONLY] = False
    cuda_graphs: Annotated[bool, RUN_ONLY] = True
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
