from neuralfunctionals.config import (
    OptimizerConfig as OptimizerConfig,
    TrainingConfig as TrainingConfig,
)
from neuralfunctionals.tasks.batches import (
    EvalBatches as EvalBatches,
    TrainBatches as TrainBatches,
)
from neuralfunctionals.tasks.classify.task import (
    ClassifyTask as ClassifyTask,
)
from neuralfunctionals.tasks.definition import (
    Column as Column,
    ModelSettings as ModelSettings,
    Picture as Picture,
    Published as Published,
    Recipe as Recipe,
    TaskDefinition as TaskDefinition,
)
from neuralfunctionals.tasks.edit.task import (
    EditTask as EditTask,
)
from neuralfunctionals.tasks.generalization.task import (
    GeneralizationTask as GeneralizationTask,
)
from neuralfunctionals.tasks.inr2array.task import (
    ReconstructTask as ReconstructTask,
)
from neuralfunctionals.tasks.latents import (
    interpolate as interpolate,
    nearest as nearest,
)
from neuralfunctionals.tasks.task import (
    Task as Task,
    TrainingDivergedError as TrainingDivergedError,
    evaluate as evaluate,
)
from neuralfunctionals.tasks.training import (
    train as train,
)
