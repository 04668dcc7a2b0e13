"""The base class of tasks: a model with its optimiser, loss and metric: `Task`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from neuralfunctionals.config import OptimizerConfig
from neuralfunctionals.data import WeightDataset, WeightItems
from neuralfunctionals.data.formats.given import read_given, require_one_frequency
from neuralfunctionals.errors import UserError
from neuralfunctionals.inr import SirenForm, convert
from neuralfunctionals.inr.siren import can_be_siren
from neuralfunctionals.tasks.batches import mixed_seed
from neuralfunctionals.weight_space import NetworkSpec, NetworkSymmetry, WeightSpaceFeatures

# Axes: B input networks.


class TrainingDivergedError(UserError):
    """The loss became NaN or infinite."""


class Task(LightningModule):
    """A model and the task it is trained on; abstract.

    A task defines how items of a dataset become a batch (`prepare`), what to minimise (`loss`), and which numbers to
    report for each network (`score`) and for many (`summarize`).

    Args:
        model: The functional to train.
        optimizer: How to train it.
        seed: Random seed.
        form: Frequency and convention of the sine networks that the model takes; None for other networks. Networks of
            another form are converted first.
    """

    metric: ClassVar[str]
    """The metric that selects the best model."""
    higher_is_better: ClassVar[bool] = False
    """Whether a larger metric is better."""
    num_samples: ClassVar[int] = 16
    """Maximum number of test networks passed to `samples` after training."""
    needs_images: ClassVar[bool] = False
    """Whether `prepare` needs images; if a dataset has none, they are rendered from the networks."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
        form: SirenForm | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer or OptimizerConfig()
        self.seed = seed
        self.form = form
        self._scores: list[dict[str, Tensor]] = []

    @property
    def canonical(self) -> NetworkSymmetry | None:
        """The symmetry under which the model's inputs are canonicalized, if any; in training, in large batches."""
        found = getattr(self.model, "canonical", None)
        return found if isinstance(found, NetworkSymmetry) else None

    @abstractmethod
    def prepare(self, items: WeightItems) -> Any:
        """Converts items of a dataset to a batch of tensors."""

    @abstractmethod
    def loss(self, batch: Any) -> Float[Tensor, ""]:
        """The loss to minimise."""

    @abstractmethod
    def score(self, batch: Any) -> dict[str, Float[Tensor, "B"]]:
        """Scores of each network, from which `summarize` computes the metrics."""

    def summarize(self, scores: Mapping[str, Float[Tensor, "B"]]) -> dict[str, float]:
        """The metrics of many networks; by default, the means of the scores."""
        return {name: values.double().mean().item() for name, values in scores.items()}

    def samples(self, items: WeightItems) -> dict[str, Tensor]:
        """Arrays for the pictures of a report, such as pictures before and after an edit; none by default."""
        return {}

    def map(self, dataset: WeightDataset) -> dict[str, Tensor]:
        """Arrays of all test networks for a report, such as a map of their latents; none by default."""
        return {}

    def require_spec(self, spec: NetworkSpec, where: object) -> None:
        """Raises an error if the model cannot take networks of this spec."""
        own = getattr(self.model, "spec", spec)
        remedy = "Train a model on networks like these: nf train ... --data DIR."
        if own != spec:
            raise UserError(f"The model takes networks {own}, but {where} has networks {spec}. {remedy}")
        if self.form is not None:
            # Sine networks of another form are converted, not refused.
            if can_be_siren(own) and not can_be_siren(spec):
                raise UserError(
                    f"The model takes sine networks, but {where} has networks with the activation "
                    f"{spec.activation}. {remedy}"
                )
        elif (conflict := spec.find_conflict(own)) is not None:
            raise UserError(f"The model cannot take the networks of {where}: they have {conflict}. {remedy}")

    def describe(self, features: WeightSpaceFeatures) -> WeightSpaceFeatures:
        """Returns networks of the model, inputs or outputs, with a spec that records their form."""
        return features if self.form is None else self.form.label(features)

    def require_data(self, dataset: WeightDataset) -> None:
        """Raises an error if the task cannot train on this dataset; by default, if its networks have another spec."""
        self.require_spec(dataset.spec, dataset.path)

    def adapt(self, dataset: WeightDataset) -> WeightDataset:
        """The dataset as the task needs it: with networks in the model's form, and with images if necessary.

        Raises:
            ValueError: If the task cannot train on this dataset; see `require_data`.
        """
        self.require_data(dataset)
        dataset = dataset.with_images() if self.needs_images else dataset
        return dataset if self.form is None else dataset.in_form(self.form)

    def read(self, networks: Any, form: SirenForm | None = None) -> WeightSpaceFeatures:
        """Converts modules, `state_dict`s or features to inputs of the model: checked, in its form, on its device.

        Args:
            networks: The networks.
            form: Their form. What neither it nor their spec records is assumed to be as for the model.
        """
        if holds_state_dicts(networks):
            networks = read_given(networks).features
        if not isinstance(networks, WeightSpaceFeatures):
            modules = [networks] if isinstance(networks, nn.Module) else list(networks)
            require_one_frequency(modules)
            networks = WeightSpaceFeatures.from_modules(modules)
        self.require_spec(networks.spec, "the input")
        networks.require_finite()
        if self.form is not None and can_be_siren(networks.spec):
            form = form or SirenForm.of(networks.spec, assumed=self.form)
            networks = convert(form.label(networks), self.form)
        return networks.to(self.device)

    # Lightning's methods.

    def configure_optimizers(self) -> Any:
        """The optimiser and its schedule, which is updated every step."""
        make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[self.optimizer.name]
        optimizer = make(
            self.parameters(),
            lr=self.optimizer.lr,
            betas=(0.9, self.optimizer.beta2),
            weight_decay=self.optimizer.weight_decay,
        )
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.optimizer.factor(step, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seeds the random numbers by run, batch and process, so that a resumed run draws the same numbers."""
        torch.manual_seed(mixed_seed(self.seed, self.trainer.fit_loop.total_batch_idx, self.trainer.global_rank))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        # On other devices, checking every step would synchronize every step.
        if (loss.device.type == "cpu" or batch_idx % 50 == 0) and not torch.isfinite(loss):
            raise TrainingDivergedError(
                f"The loss became {loss.item()} at step {self.trainer.global_step + 1}. Use a smaller learning rate "
                f"(now {self.optimizer.lr:g}), a longer warm-up (now {self.optimizer.warmup_steps} steps) or clip the "
                "gradients (optimizer.clip_norm)."
            )
        self.log("loss", loss.detach(), prog_bar=True, logger=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._scores.append(self.score(batch))

    def on_validation_epoch_end(self) -> None:
        """Computes the metrics over all processes; each gets the same values."""
        metrics = self.summarize(_join(self._scores))
        self._scores.clear()
        self.log_dict({f"val/{name}": value for name, value in metrics.items() if name != self.metric})
        self.log(f"val/{self.metric}", metrics[self.metric], prog_bar=True)


def holds_state_dicts(networks: Any) -> bool:
    """Whether the input is a `state_dict` or a list of these."""
    if isinstance(networks, (list, tuple)):
        return bool(networks) and all(isinstance(part, Mapping) for part in networks)
    return isinstance(networks, Mapping)


def form_of_model(model: nn.Module) -> SirenForm | None:
    """The form of sine networks that a model's spec records; None if the model takes other networks."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, NetworkSpec):
        return SirenForm()
    return SirenForm.of(spec) if can_be_siren(spec) else None


def _join(scores: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenates the scores of all batches of all processes."""
    mine = {name: torch.cat([part[name] for part in scores]).cpu() for name in scores[0]} if scores else {}
    if not dist.is_available() or not dist.is_initialized():
        return mine
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    full = [part for part in parts if part]
    return {name: torch.cat([part[name] for part in full]) for name in full[0]}


@torch.inference_mode()
def evaluate(task: Task, batches: Any) -> dict[str, float]:
    """Computes the metrics of a task over batches, with its model in evaluation mode.

    Args:
        task: The task with a trained model, on the device to use.
        batches: For example, `EvalBatches(task.adapt(dataset), task.prepare, batch_size=32)`.
    """
    was_training = task.model.training
    task.model.eval()
    try:
        scores = [task.score(task.transfer_batch_to_device(batch, task.device, 0)) for batch in batches]
    finally:
        task.model.train(was_training)
    if not scores:
        raise UserError("Expected at least one network to evaluate on, but there are none.")
    return task.summarize({name: torch.cat([part[name] for part in scores]).cpu() for name in scores[0]})
