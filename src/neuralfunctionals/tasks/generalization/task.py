"""Predicting the test accuracy of a network from its weights: `GeneralizationTask`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from neuralfunctionals.config import OptimizerConfig
from neuralfunctionals.data import WeightItems
from neuralfunctionals.data.formats.given import read_given
from neuralfunctionals.errors import UserError, require_choice
from neuralfunctionals.tasks.generalization import TASK
from neuralfunctionals.tasks.task import Task
from neuralfunctionals.weight_space import WeightSpaceFeatures

# Axes: B input networks.

_LOSSES = ("bce", "mse")
_BATCH_SIZE = 32
"""Maximum batch size of `predict`."""


class AccuracyBatch(NamedTuple):
    """Networks and their test accuracies."""

    features: WeightSpaceFeatures
    accuracy: Float[Tensor, "B"]


class GeneralizationTask(Task):
    r"""Learns to predict the test accuracy $a$ of a classifier from its weights, as $\sigma(f(W))$.

    The loss is the cross-entropy $-a \log \sigma(f) - (1 - a) \log(1 - \sigma(f))$, whose minimum is at the true
    accuracy, or the squared error. Metrics: Kendall's rank correlation (tau-b), the coefficient of determination, and
    the mean absolute error.

    Symmetry: the predictions are invariant if the model is.
    References: Unterthiner et al., 2020, https://arxiv.org/abs/2002.11448; Zhou et al., 2023,
    https://arxiv.org/abs/2302.14040.

    Args:
        model: Maps features to one logit per network.
        loss: `"bce"` or `"mse"`.
        optimizer: How to train.
        seed: Random seed.
    """

    metric: ClassVar[str] = TASK.metric
    higher_is_better: ClassVar[bool] = TASK.higher_is_better
    num_samples: ClassVar[int] = 2000

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Literal["bce", "mse"] = "bce",
        optimizer: OptimizerConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer=optimizer, seed=seed)
        require_choice("a loss,", loss, _LOSSES)
        self.loss_name = loss

    def prepare(self, items: WeightItems) -> AccuracyBatch:
        if items.features is None or "test_accuracy" not in items.tensors:
            raise UserError(
                "Predicting accuracy needs networks with a known test_accuracy, but the dataset lacks them. "
                "Make it with nf zoo, or import it with nf data import small-cnn-zoo."
            )
        return AccuracyBatch(items.features, items.tensors["test_accuracy"].float())

    def forward(self, features: WeightSpaceFeatures) -> Float[Tensor, "B"]:
        """The logits of the accuracies."""
        logits = self.model(features)
        if not isinstance(logits, Tensor) or logits.shape != (len(features), 1):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(
                f"Expected a model that returns one number for each of {len(features)} networks, but got {got}. "
                'Build it with pooling="HNP" or another invariant output, and out_channels=1.'
            )
        return logits[:, 0]

    def loss(self, batch: AccuracyBatch) -> Float[Tensor, ""]:
        logits = self(batch.features).float()
        if self.loss_name == "bce":
            return F.binary_cross_entropy_with_logits(logits, batch.accuracy)
        return F.mse_loss(logits.sigmoid(), batch.accuracy)

    def score(self, batch: AccuracyBatch) -> dict[str, Float[Tensor, "B"]]:
        return {"predicted": self(batch.features).float().sigmoid(), "true": batch.accuracy}

    def summarize(self, scores: Mapping[str, Float[Tensor, "B"]]) -> dict[str, float]:
        return accuracy_metrics(scores["predicted"], scores["true"])

    def samples(self, items: WeightItems) -> dict[str, Float[Tensor, "B"]]:
        """Predicted and true accuracies."""
        batch = self.prepare(items)
        return {"predicted": self.predict(batch.features).float(), "true": batch.accuracy}

    @overload
    def predict(self, networks: nn.Module) -> float: ...
    @overload
    def predict(self, networks: Sequence[nn.Module] | WeightSpaceFeatures) -> Float[Tensor, "B"]: ...

    @torch.no_grad()
    def predict(self, networks: Any) -> Any:
        """Predicts the accuracy, from 0 to 1, of a module, or the accuracies of a list of modules or of features."""
        if not isinstance(networks, WeightSpaceFeatures):
            given = read_given(networks)
            accuracies = self.predict(given.features)
            return accuracies.item() if given.is_single else accuracies
        self.require_spec(networks.spec, "the input")
        networks.require_finite()
        self.model.eval()
        starts = range(0, max(len(networks), 1), _BATCH_SIZE)
        parts = [networks[start : start + _BATCH_SIZE] for start in starts]
        accuracies = torch.cat([self(part.to(self.device)).sigmoid() for part in parts]).to(networks.tensor.device)
        networks.require_finite_answers(accuracies)
        return accuracies


def accuracy_metrics(predicted: Float[Tensor, "B"], true: Float[Tensor, "B"]) -> dict[str, float]:
    """Metrics of predicted accuracies: `kendall_tau` (tau-b), `r2` and `l1`.

    If all predictions are equal, tau is 0; if all true accuracies are equal, both tau and R2 are 0.

    Example:
        >>> accuracy_metrics(torch.tensor([0.1, 0.2, 0.4]), torch.tensor([0.1, 0.3, 0.5]))["kendall_tau"]
        1.0
    """
    from scipy.stats import kendalltau

    predicted, true = predicted.double(), true.double()
    spread = (true - true.mean()).square().sum()
    differ = bool((predicted != predicted[0]).any()) and spread > 0
    order: Any = kendalltau(predicted.numpy(), true.numpy()) if differ else None
    tau = 0.0 if order is None else float(order.statistic)
    r2 = 1 - (predicted - true).square().sum() / spread if spread > 0 else torch.zeros(())
    return {"kendall_tau": tau, "r2": r2.item(), "l1": (predicted - true).abs().mean().item()}
