"""The base of tasks, and protocols of predictors.

Any class with the methods of a protocol satisfies it.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key

from zoo.core import losses, trees
from zoo.core.beliefs import Belief
from zoo.core.draws import REDRAW_KEY
from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_object,
  in_one_line,
)
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt, checked_prompt

# Longer contexts are this many times as long as that of the task.
_LENGTHS = 2, 4, 8, 16, 32
KEPT = 'query', 'inputs'  # `redraw` can keep these of a prompt.


@runtime_checkable
class Predictor(Protocol):
  """A callable that predicts: a model, an estimator or a learning rule."""

  def __call__(self, prompt: Prompt, /) -> Float[Array, ' b *k']:
    """Returns the prediction for each prompt's query.

    It is a number; for two classes the logit of the label +1; for k classes k logits.
    """
    ...


@runtime_checkable
class PredictsAll(Predictor, Protocol):
  """A predictor that predicts every example of a prompt in one pass.

  A model with the method `predictions` satisfies this protocol. It can be trained on
  all examples of a prompt, and its curves need one pass.

  Example:
    >>> rule = zoo.LearningRule.gradient_descent(np.zeros(2), step_size=0.5)
    >>> isinstance(rule, zoo.PredictsAll)
    True
  """

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """Returns predictions for each example, from those before it, and for the query.

    That for the query is the last.
    """
    ...


@runtime_checkable
class MayPredictAll(PredictsAll, Protocol):
  """A predictor that says whether it can give the `predictions` that its class has.

  Attributes:
    predicts_all: Whether this object can.
  """

  predicts_all: bool


def predicts_all(subject: object) -> TypeGuard[PredictsAll]:
  """Says whether a predictor can give `predictions`."""
  if isinstance(subject, MayPredictAll):
    return subject.predicts_all
  return isinstance(subject, PredictsAll)


@runtime_checkable
class MayIgnoreOrder(Predictor, Protocol):
  """A predictor that says whether the order of the examples matters to it.

  Attributes:
    order_invariant: Whether the prediction is the same for every order of the examples.
  """

  order_invariant: bool


@runtime_checkable
class Model(Predictor, Protocol):
  """A model: any `nnx.Module` that returns one prediction for each prompt.

  The call `model(prompt)` takes a batch of prompts, and returns an array `[b]`, or
  `[b, k]` if the task has k outputs. It reads `prompt.x` `[b, c, d]`, `prompt.y`
  `[b, c]` and `prompt.x_query` `[b, d]`. It must not read `prompt.y_query`, and must
  accept shorter contexts, down to no example. `zoo.check_model` tests this.

  A model needs no base class. A class that is trained by `zoo.train` is registered by
  `zoo.register_model`, and its constructor takes `num_features` and `rngs`.

  These methods and attributes are optional:

  - `predictions(prompt)` returns `[b, t]` or `[b, t, k]`: the prediction for each
    example from those before it, with the prediction for the query last
    (`zoo.PredictsAll`). The model can then be trained on all examples.
  - `learning_rule()` returns a `zoo.LearningRule` that predicts the same. The exact
    risk of the model is then known.
  - `order_invariant = True` says that the order of the examples does not matter.

  Example:
    >>> class MeanLabel(nnx.Module):
    ...   def __init__(self, num_features, *, rngs):
    ...     self.scale = nnx.Param(jnp.ones(()))
    ...   def __call__(self, prompt):
    ...     num_examples = max(prompt.y.shape[1], 1)  # a context may be empty
    ...     return self.scale[...] * prompt.y.sum(axis=1) / num_examples
    >>> model = MeanLabel(num_features=2, rngs=nnx.Rngs(0))
    >>> isinstance(model, zoo.Model)
    True
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model(task.sample(jax.random.key(0), batch_size=3)).shape
    (3,)
  """


@runtime_checkable
class Layered(Predictor, Protocol):
  """A predictor whose readout can read the tokens of every layer."""

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b n w']]:
    """Returns the tokens before the first layer and after each layer.

    The token of the query is the last one.
    """
    ...

  def read(
    self, tokens: Float[Array, 'b n w'], prompt: Prompt
  ) -> Float[Array, 'b t *k']:
    """Returns the predictions of the readout from the tokens of any layer."""
    ...


@runtime_checkable
class FollowsRule(Predictor, Protocol):
  """A predictor of the linear family, which follows a learning rule."""

  def learning_rule(self) -> LearningRule:
    """Returns the rule that predicts the same for every prompt."""
    ...


@runtime_checkable
class HasExactForm(Predictor, Protocol):
  """A predictor outside the linear family whose exact risk is known."""

  def exact_form(self) -> DeepRule | Recurrence:
    """Returns the form that predicts the same for every prompt.

    Raises:
      UserError: If these hyper-parameters have no form; the message has the reason.
    """
    ...


class BaseTask(trees.Tree, abc.ABC):
  """The base of tasks: a distribution of prompts, of which `sample_one` draws one.

  `zoo.Task` is this class. A task is a frozen dataclass that JAX maps over as a pytree,
  such as `flax.struct.dataclass` makes. Its numbers and arrays are arguments of
  compiled programs. Its sizes and names, which are fields with `pytree_node=False`, are
  constants of the programs.

  Attributes:
    num_features: d ≥ 1, the number of features.
    context_length: C ≥ 1, the number of context examples.
    num_outputs: The number of outputs of a prediction: k for classes whose labels are
      one-hot vectors, else 1.
    label_kind: 'numbers'; 'signs' for two classes ±1; or 'classes' for one-hot vectors.
    shows_labels: Whether the prompts have the labels of their examples.
    stationary: Whether any n examples in a row, with the features after them as the
      query, have the same distribution as the first n examples with the features after
      those.
    exchangeable: Whether the order of the examples says nothing about the label of the
      query, as where examples are independent given the function.
    may_miss: Whether features may be NaN, which says that they are missing.

  Example:
    >>> from flax import struct
    >>> @struct.dataclass(eq=False, repr=False)
    ... class Line(zoo.tasks.BaseTask):
    ...   num_features: int = struct.field(pytree_node=False, default=1)
    ...   context_length: int = struct.field(pytree_node=False, default=3)
    ...   def sample_one(self, key):
    ...     x = jax.random.normal(key, (self.context_length + 1, 1))
    ...     y = 2 * x[:, 0]
    ...     return zoo.Prompt(x=x[:-1], y=y[:-1], x_query=x[-1], y_query=y[-1])
    >>> Line().sample(jax.random.key(0), batch_size=4).x.shape
    (4, 3, 1)
  """

  num_features: int
  context_length: int
  num_outputs: int = 1
  label_kind: str = 'numbers'
  shows_labels: bool = True
  stationary: bool = False
  exchangeable: bool = False
  may_miss: bool = False

  def check(self) -> None:
    """Checks the fields of the task; `zoo.create_task` calls it.

    The base class checks the sizes.

    Raises:
      UserError: If a field is out of its range.
    """
    check_count('num_features', self.num_features)
    check_count('context_length', self.context_length)

  @abc.abstractmethod
  def sample_one(self, key: Key[Array, '']) -> Prompt:
    """Draws one prompt, without the axis b.

    Where a label is a sum over features, compute it with `zoo.tasks.base.dot`: the
    order in which XLA adds depends on the shapes, and so on how many devices share a
    batch.

    Args:
      key: The random key of this prompt.

    Returns:
      A prompt with `x [c, d]`, `y [c, *k]`, `x_query [d]` and `y_query [*k]`. Its
      `latents` are any arrays that it was drawn from, or None.
    """

  def sample(
    self, key: Key[Array, ''], batch_size: int, latents: bool = False
  ) -> Prompt:
    """Draws a batch of prompts, on the device.

    A prompt is a pure function of the key and of its position in the batch: it is the
    same on any number of devices, and in a larger batch.

    Args:
      key: The random key of the batch.
      batch_size: The number of prompts, ≥ 1.
      latents: Whether the prompts also have what the task drew and does not show, such
        as the weights w, for probes. Within a compiled program of your own, this may
        change the last digits of the other arrays.

    Returns:
      The prompts.

    Raises:
      UserError: If `batch_size` is not an integer ≥ 1, if `key` is not one random key,
        or if the class of the task is no pytree.

    Example:
      >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
      >>> task.sample(jax.random.key(0), batch_size=4).y.shape
      (4, 3)
    """
    trees.check_tree(self)
    check_key(key)
    task, batch_size = trees.fresh(self), check_count('batch_size', batch_size)
    program = _program
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((task, key))):
      # The program is traced anew, since the code that the task calls may differ.
      program = jax.jit(functools.partial(_sample), static_argnums=(2, 3))
    prompt = program(task, key, batch_size, False)
    if not latents:
      return prompt
    # Another program draws the latents, so that the prompts have the same bits.
    drawn = program(task, key, batch_size, True)
    return dataclasses.replace(prompt, latents=drawn)

  def sample_batch(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Draws a batch of prompts with `sample_one`, each with its own key.

    `sample` compiles this method. A task may override it with a faster one of the same
    distribution, as `linear_regression` does; mixtures then still use its `sample_one`.

    Args:
      key: The random key of the batch.
      batch_size: The number of prompts, ≥ 1.

    Returns:
      The prompts.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch_size))
    return jax.vmap(self.sample_one)(keys)

  def redraw(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws prompts of this task again, given a part of each that is kept.

    What is drawn has its distribution given what is kept, so that redrawn prompts of
    the task have the distribution of its prompts. What is kept is equal to the bit.

    Args:
      key: Each prompt is drawn with its own key, which follows from this one and the
        prompt's position in the batch.
      prompt: Prompts `[b]` of this task, with all of their examples.
      keep: 'query' keeps the features of the query; the function and the examples are
        drawn again. 'inputs' keeps the features of the query and of all examples; the
        function is drawn again, and so the labels are others.

    Returns:
      As many prompts, without latents.

    Raises:
      UserError: If `key` is not one random key, if the prompts have other sizes than
        those of this task, or if the task does not say how they are drawn again; the
        error says why.

    Example:
      >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
      >>> prompt = task.sample(jax.random.key(0), 4)
      >>> other = task.redraw(jax.random.key(1), prompt, keep='inputs')
      >>> bool(jnp.array_equal(other.x, prompt.x)), bool((other.y == prompt.y).any())
      (True, False)
    """
    check_name('keep', keep, KEPT)
    check_key(key)
    sizes = self.context_length, self.num_features
    if prompt.x.shape[1:] != sizes:
      raise UserError(
        f'prompt.x has the shape {prompt.x.shape}; to be drawn again, prompts must '
        f'have all examples of the task, {(prompt.x.shape[0], *sizes)}'
      )
    prompt = dataclasses.replace(prompt, latents=None)
    task, program = trees.fresh(self), _redraw_program
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((task, key, prompt))):
      program = jax.jit(_redraw, static_argnums=3)
    drawn = program(task, key, prompt, keep)
    kept: dict[str, Any] = {'x_query': prompt.x_query}
    if keep == 'inputs':
      kept['x'] = prompt.x
    return dataclasses.replace(drawn, latents=None, **kept)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, without the axis b, for `redraw`.

    The method may ignore the latents, and the bits of what is kept: `redraw` restores
    them.

    Args:
      key: The random key of this prompt.
      prompt: The prompt, with `x [c, d]` and so on.
      keep: 'query' or 'inputs', as in `redraw`.

    Returns:
      The new prompt.

    Raises:
      UserError: If the task does not define how a prompt is drawn again, as here.
    """  # noqa: DOC202
    name = type(self).__name__
    raise UserError(
      f'{name} does not say how a prompt is drawn again; define {name}.redraw_one(key, '
      'prompt, keep), or derive it from zoo.tasks.FunctionClass, which has it for '
      'functions that do not depend on the features'
    )

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """Returns the log density of the features of a prompt, or of its query (n = 1).

    A mixture needs it to draw a prompt again: the features that are kept tell something
    about the task that the prompt comes from.

    Raises:
      UserError: If the task does not define it, as here.
    """
    name = type(self).__name__
    raise UserError(
      f'{name} does not say how probable {_words_of(x)} are, so that prompts of a '
      f'mixture with it cannot be drawn again; define {name}.log_density(x)'
    )

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    """Draws labels, given the targets.

    With `objective.labels='observed'` the query gets such a label. In the base class,
    classes are drawn from their probabilities, and numbers get no noise.

    Args:
      key: The random key.
      targets: The targets of t tokens, `[t]` or `[t, k]`.

    Returns:
      The labels, in the same shape.
    """
    if self.label_kind == 'classes':
      drawn = jax.random.categorical(key, jnp.log(targets))
      return jax.nn.one_hot(drawn, targets.shape[-1], dtype=targets.dtype)
    if self.label_kind == 'signs':
      return jnp.where(jax.random.bernoulli(key, targets), 1, -1).astype(targets.dtype)
    return targets

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    """Returns the loss of each prediction.

    In the base class it follows from `label_kind`: the squared error; or, in nats, the
    log loss of a logit or of the logits of k classes.

    Args:
      prediction: Predictions, such as `[b]`; for k classes `[b, k]`.
      target: Their targets, in the same shape.

    Returns:
      The losses; the axis of classes is gone.
    """
    return losses.LOSSES[self.label_kind](prediction, target)

  def accuracy(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m'] | None:
    """Returns the probability that the most likely label is right; None for numbers.

    Args:
      prediction: Predictions, such as `[b]`; for k classes `[b, k]`.
      target: Their targets, in the same shape: probabilities.
    """
    if self.label_kind == 'numbers':
      return None
    return 1 - losses.ERROR_RATES[self.label_kind](prediction, target)

  def held_out(self) -> BaseTask:
    """Returns the task on whose prompts a model trained on this one is measured.

    In the base class it is this task.
    """
    return self

  def mean_weights(self) -> Float[np.ndarray, ' d'] | None:
    """Returns the mean w* of the weights w, if targets are functions of `w·x`.

    For other tasks it is None.
    """
    return None

  def linear_prior(self) -> Any:
    """Returns the `zoo.estimators.linear_prior.LinearPrior` of linear regression.

    For every other task it is None: the estimators of `zoo.estimators` then have no
    best parameters.
    """
    return None

  def posterior(self) -> Predictor | None:
    """Returns the task's `zoo.estimators.posteriors.Posterior`, which mixtures need.

    If it is unknown, the result is None.
    """
    return None

  def belief(self, prompt: Prompt) -> Belief:
    """Returns the exact posterior of what prompts were drawn from, at each token.

    The belief at place i follows from the first i examples and the features of the next
    one, which is all that a model has seen when it predicts label i. What it is about
    depends on the task, and stands in its `compute_belief`: the hidden state, the
    member of a pool, the part of a mixture, or the weights.

    Args:
      prompt: Prompts `[b]` of this task. They may have fewer examples.

    Returns:
      The belief, with values `[b, c + 1, k]`.

    Raises:
      UserError: If the posterior of this task is not known, or the prompts have another
        number of features.

    Example:
      >>> task = zoo.create_task('task_pool', num_features=2, num_tasks=3)
      >>> belief = task.belief(task.sample(jax.random.key(0), 4))
      >>> belief.values.shape, belief.values[0, 0].round(3).tolist()
      ((4, 17, 3), [0.3330000042915344, 0.3330000042915344, 0.3330000042915344])
    """
    prompt = checked_prompt(prompt, 'belief', self.num_features)
    return self.compute_belief(dataclasses.replace(prompt, latents=None))

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes what `belief` returns.

    A task of your own defines this method. `zoo.core.beliefs.values_of` compiles the
    method `belief` of an estimator, which the tasks of this library use.

    Args:
      prompt: Prompts `[b]`, checked and without latents.

    Returns:
      The belief, with values `[b, c + 1, k]`.

    Raises:
      UserError: If the posterior of the task is not known, as here.
    """  # noqa: DOC202
    raise self.no_belief(
      'its posterior has no closed form here; define compute_belief(prompt) for one'
    )

  def belief_prediction(
    self, values: Float[Array, 'b k'], prompt: Prompt
  ) -> Float[Array, ' b *k']:
    """Returns what a reader with a given belief predicts for the query.

    For the belief of the prompt itself at the query this is the Bayes prediction.

    Args:
      values: A belief for each prompt, `[b, k]`, one place of `Belief.values`.
      prompt: Prompts `[b]`, of which the features of the query are used alone.

    Returns:
      The expected label, `[b]`, or the probabilities of the classes, `[b, k]`.

    Raises:
      UserError: If the belief of the task does not determine a prediction, or if the
        task does not say it, as here.
    """  # noqa: DOC202
    raise UserError(
      f'{type(self).__name__} does not say what follows from a belief; define '
      f'{type(self).__name__}.belief_prediction(values, prompt)'
    )

  def no_belief(self, why: str) -> UserError:
    """Returns the error of a task without a belief.

    Args:
      why: Why it has none, as the end of the message.
    """
    return UserError(f'{type(self).__name__} has no belief: {why}')

  def baselines(self) -> dict[str, Predictor]:
    """Returns untrained predictors to compare a model with, by name.

    A baseline named `bayes` has the least expected loss of all predictors; one that
    estimates it by sampling is named `bayes_estimate`. If there is neither, the first
    is the one to beat. A baseline for which the distribution of the observed label is
    known has the method `distribution`.
    """
    return {}

  def shifts(self) -> dict[str, BaseTask]:
    """Returns tasks, by name, on which to test a model that was trained on this one.

    In the base class they are this task with 2, 4, 8, 16 and 32 times as many examples
    (Lee et al., arXiv 2310.08049). Lengths that the task refuses are left out. A task
    that has no argument `context_length` has no shifts.
    """
    longer: dict[str, BaseTask] = {}
    if 'context_length' not in trees.arguments(self):
      return longer
    for factor in _LENGTHS:
      length = factor * self.context_length
      with contextlib.suppress(UserError):
        task: Any = dataclasses.replace(self, context_length=length)  # pyright: ignore
        task.check()
        longer[f'context_length={length}'] = task
    return longer


Task = BaseTask  # Annotations and `zoo` use this name.


def require_task(task: object) -> None:
  """Checks that an object is a task with valid fields.

  The constructor of a task does not check its fields, since JAX calls it, too. So every
  function that measures on a task does.

  Raises:
    UserError: If the object is not a task, or if a field is out of its range.
  """
  what = 'it must be an object of a subclass of zoo.Task, such as zoo.create_task makes'
  check_object('a task', task, BaseTask, what)
  assert isinstance(task, BaseTask)
  trees.check_tree(task)
  if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(task)):
    task.check()


def check_key(key: object) -> None:
  """Checks that an object is one random key of JAX.

  Raises:
    UserError: If it is anything else, such as a seed or an array of keys.
  """
  if isinstance(key, jax.Array | np.ndarray):
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
      return
    # The keys of jax.random.PRNGKey are vectors of integers.
    with contextlib.suppress(TypeError, ValueError):
      if jax.eval_shape(jax.random.wrap_key_data, key).ndim == 0:
        return
  raise UserError(
    f'key is {in_one_line(repr(key), 80)}; it must be one random key, such as '
    'jax.random.key(0)'
  )


def _sample(task: BaseTask, key: Key[Array, ''], batch_size: int, latents: bool) -> Any:
  """Draws prompts without what the task drew or, with `latents`, that alone."""
  prompt = task.sample_batch(key, batch_size)
  if latents:
    return prompt.latents
  if not isinstance(prompt, Prompt):  # `check_task` reports it
    return prompt
  return dataclasses.replace(prompt, latents=None)  # Nothing computes latents then.


_program = jax.jit(_sample, static_argnums=(2, 3))


def _redraw(task: BaseTask, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
  """Draws prompts again, each with its own key."""
  # The key is changed: with that of `sample` the function would be the same again.
  key = jax.random.fold_in(key, REDRAW_KEY)
  places = jnp.arange(prompt.x.shape[0])
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, places)
  drawn = jax.vmap(lambda key, prompt: task.redraw_one(key, prompt, keep))(keys, prompt)
  return dataclasses.replace(drawn, latents=None)  # Nothing computes latents then.


_redraw_program = jax.jit(_redraw, static_argnums=3)


def _words_of(x: Float[Array, 'n d']) -> str:
  """Returns in words what features of n examples are."""
  return 'the features of a query' if len(x) == 1 else 'the features of a prompt'
