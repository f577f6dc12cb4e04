"""ICL Zoo: architectures that learn in context, and their exact theory.

Example:
  >>> model = zoo.create_model('yq_lsa', num_features=10, rngs=nnx.Rngs(0))
  >>> task = zoo.create_task('linear_regression', num_features=10, context_length=10)
  >>> model(task.sample(jax.random.key(0), batch_size=2048)).shape
  (2048,)
"""

from typing import TYPE_CHECKING, Any, Literal, overload

from zoo import estimators as estimators
from zoo import mixers as mixers
from zoo import models as models
from zoo import probing as probing
from zoo import tasks as tasks
from zoo import theory as theory
from zoo import training as training
from zoo.config.defaults import default_config as default_config
from zoo.contracts import check_model as check_model
from zoo.contracts import check_task as check_task
from zoo.core import registry as _registry
from zoo.core.beliefs import Belief as Belief
from zoo.core.errors import RunError as RunError
from zoo.core.errors import UserError as UserError
from zoo.core.learning_rule import LearningRule as LearningRule
from zoo.core.prompt import Prompt as Prompt
from zoo.core.protocols import Model as Model
from zoo.core.protocols import PredictsAll as PredictsAll
from zoo.core.protocols import Task as Task
from zoo.core.registry import register_mixer as register_mixer
from zoo.core.registry import register_model as register_model
from zoo.host.devices import leave_out_pass as _leave_out_pass
from zoo.measure.bayesian import exchangeability as exchangeability
from zoo.measure.bayesian import martingale as martingale
from zoo.measure.calibrate import calibration as calibration
from zoo.measure.curve import curve as curve
from zoo.measure.likelihood import likelihood as likelihood
from zoo.measure.predict import predict as predict
from zoo.measure.predictive import distribution as distribution
from zoo.objectives.curricula import register_curriculum as register_curriculum
from zoo.objectives.functions import register_objective as register_objective
from zoo.probing.validate import check_instrument as check_instrument
from zoo.storage.loading import load as load
from zoo.storage.saving import export as export
from zoo.storage.saving import save as save
from zoo.tasks import register_task as register_task
from zoo.training.hooks import Hook as Hook
from zoo.training.metrics import register_metric as register_metric
from zoo.training.optimizers import register_optimizer as register_optimizer
from zoo.training.run import train as train
from zoo.training.run import training_run as training_run
from zoo.training.wandb_writer import WandbWriter as WandbWriter

_leave_out_pass()


def list_mixers() -> list[str]:
  """Returns the names of the registered mixers.

  Returns:
    The names, in alphabetical order.

  Example:
    >>> 'softmax' in zoo.list_mixers()
    True
  """
  return sorted(_registry.MIXERS)


def list_models() -> list[str]:
  """Returns the names of the registered models.

  Returns:
    The names, in alphabetical order.

  Example:
    >>> 'yq_lsa' in zoo.list_models()
    True
  """
  return sorted(_registry.MODELS)


def list_tasks() -> list[str]:
  """Returns the names of the registered tasks.

  Returns:
    The names, in alphabetical order.

  Example:
    >>> 'linear_regression' in zoo.list_tasks()
    True
  """
  return sorted(_registry.TASKS)


@overload
def create_model(name: Literal['lsa'], **hyperparameters: object) -> models.LSA: ...
@overload
def create_model(
  name: Literal['multi_head_lsa'], **hyperparameters: object
) -> models.MultiHeadLSA: ...
@overload
def create_model(
  name: Literal['yq_lsa'], **hyperparameters: object
) -> models.YqLSA: ...
@overload
def create_model(name: Literal['ltb'], **hyperparameters: object) -> models.LTB: ...
@overload
def create_model(name: str, **hyperparameters: object) -> Model: ...
def create_model(name: str, **hyperparameters: object) -> Model:
  """Makes the model that is registered under a name.

  Its parameters are float32, unless x64 is enabled.

  Args:
    name: The name, one of `list_models()`.
    hyperparameters: The arguments of the model's constructor. All models take
      `num_features` and `rngs`.

  Returns:
    The model, which is called with prompts.

  Raises:
    UserError: If the name is unknown, if a hyper-parameter is missing, unknown to the
      class, or out of its range, or if `rngs` has no stream `params`.

  Example:
    >>> model = zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=3)
    >>> model(task.sample(jax.random.key(0), batch_size=4)).shape
    (4,)
  """
  return _registry.create('model', _registry.MODELS, name, hyperparameters)


@overload
def create_task(
  name: Literal['linear_regression'], **hyperparameters: object
) -> tasks.LinearRegression: ...
@overload
def create_task(name: str, **hyperparameters: object) -> Task: ...
def create_task(name: str, **hyperparameters: object) -> Task:
  """Makes the task that is registered under a name, and checks it.

  Args:
    name: The name, one of `list_tasks()`.
    hyperparameters: The arguments of the task, such as `num_features` and
      `context_length`.

  Returns:
    The task, whose method `sample` draws prompts.

  Raises:
    UserError: If the name is unknown, or an argument is missing, unknown to the class,
      or out of its range.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=3)
    >>> task.sample(jax.random.key(0), batch_size=4).x.shape
    (4, 3, 2)
  """
  return _registry.create_task(name, **hyperparameters)


if TYPE_CHECKING:
  from zoo.sklearn.classifier import Classifier as Classifier
  from zoo.sklearn.regressor import Regressor as Regressor


# These classes need scikit-learn, which the extra `baselines` installs.
_OF_SCIKIT_LEARN = {'Classifier', 'Regressor'}


def __getattr__(name: str) -> Any:
  if name == 'Classifier':
    from zoo.sklearn.classifier import Classifier

    return Classifier
  if name == 'Regressor':
    from zoo.sklearn.regressor import Regressor

    return Regressor
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  of_typing = {'TYPE_CHECKING', 'Any', 'Literal', 'overload'}
  # The public names of these rooms stand here. The rooms are in globals since they are
  # imported.
  rooms = {'config', 'contracts', 'core', 'host', 'measure', 'sklearn', 'storage'}
  names = {*globals(), *_OF_SCIKIT_LEARN} - of_typing - rooms
  return sorted(name for name in names if not name.startswith('_'))
