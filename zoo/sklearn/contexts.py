"""What a model takes, and its answers to many queries of one context."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import TraceContextError
from jaxtyping import Array, Float, Int
from sklearn.utils import assert_all_finite

from zoo.core.distributions import Bars, Distribution
from zoo.core.errors import UserError
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt
from zoo.core.protocols import FollowsRule, Predictor, Task
from zoo.estimators.baselines import Baseline, Examples, HostBaseline
from zoo.estimators.linear import Estimator
from zoo.measure.predict import Programs, after_some, one_pass

# The most queries of one call, and the most numbers that a call may hold at once, where
# each query has a copy of the context and where all queries share it.
_MOST_QUERIES, _OF_COPIES, _OF_ONE = 4096, 2**22, 2**24
# The most examples of a context that is copied: attention between the tokens of more of
# them would need gigabytes.
_LONGEST_COPY = 4096

# The fewest queries of a call where all of them share the context. They cost next to
# nothing there, and a prediction then has the same bits alone and among others: XLA
# rounds products of other shapes in other ways.
_FEWEST_ROWS = 32

Predictors = list[Any]


def num_features_of(model: Predictor, task: Task | None) -> int | None:
  """Returns how many features a model is for; None if it takes any number of them."""
  number = getattr(model, 'num_features', None)
  if number is None and isinstance(model, Estimator) and model.start is not None:
    number = np.size(model.start)
  if number is None and task is not None:
    number = task.num_features
  if number is None or isinstance(model, HostBaseline):
    return None
  return None if _takes(model, 1, number + 1, labels_of(task)) else number


def longest_context(model: Predictor, d: int, labels: tuple[int, ...]) -> int | None:
  """Returns the most examples that a model is given; None if there is no limit.

  A model that has `context_length` may still take longer contexts, as a transformer
  without learned positions does. A model that needs a copy of the context for each
  query is given at most 4,096 examples.

  Args:
    model: The predictor.
    d: The number of features that it is given.
    labels: The axes of a label: none for a number, `(k,)` for one-hot vectors.
  """
  longest = getattr(model, 'context_length', None)
  if longest is not None and not _takes(model, longest + 1, d, labels):
    return longest
  return _LONGEST_COPY if Answers(model, None).makes_copies else None


def labels_of(task: Task | None) -> tuple[int, ...]:
  """The axes of a label of a task: none for a number, `(k,)` for one-hot vectors."""
  is_one_hot = task is not None and task.label_kind == 'classes'
  return (task.num_outputs,) if task is not None and is_one_hot else ()


@contextlib.contextmanager
def stateless(model: Predictor) -> Iterator[None]:
  """Raises UserError in the block, which calls a model, if it changes variables."""
  try:
    yield
  except TraceContextError as error:
    raise UserError(
      f'{type(model).__name__} changes its variables when it is called, as dropout '
      'does; call model.eval() first'
    ) from error


def shape_of_prediction(
  model: Predictor, c: int, d: int, labels: tuple[int, ...]
) -> tuple[int, ...]:
  """The axes of a prediction for one query; raises what the model raises."""
  if isinstance(model, HostBaseline):
    return ()  # The number is not traced.

  def of(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)

  prompt = Prompt(of(1, c, d), of(1, c, *labels), of(1, d), of(1, *labels))
  return jax.eval_shape(lambda prompt: model(prompt), prompt).shape[1:]


def _takes(model: Predictor, c: int, d: int, labels: tuple[int, ...]) -> bool:
  """Whether a model takes c examples of d features."""
  try:
    shape_of_prediction(model, c, d, labels)
  except (UserError, TypeError, ValueError):  # JAX raises the last two for shapes
    return False
  return True


class Answers:
  """The answers of a model to queries of contexts, in as few programs as it allows.

  - `rule`: a model of the linear family, or an estimator that fits weights, is asked
    for its weights once; all queries share them.
  - `rows`: a model with `predict_rows(x, y, x_queries)` takes many queries at once. If
    it has `distribution_of_rows`, this is asked for distributions in the same way.
  - `shared`: a baseline takes them at once, too.
  - `one pass`: a model that predicts every example of a prompt in one pass gets a copy
    of the context for each query.
  - `copies`: so does any other model.

  Contexts are padded to a power of two where examples that are not seen change nothing,
  which is so for `shared` and `one pass`: the number of programs is then the logarithm
  of the longest context. Queries are padded in the same way; they do not know of one
  another. The other ways compile a program for each length of a context.
  """

  def __init__(self, model: Predictor, longest: int | None):
    """Finds out how the model takes queries.

    Args:
      model: The predictor.
      longest: The most examples that it takes; None if it has no limit.
    """
    self.model, self.longest = model, longest
    self._programs = Programs()
    self._rule = self._rule_of(model)
    self._way = self._which_way()

  def _rule_of(self, model: Predictor) -> Any:
    """The learning rule of a model in float64 on the host; None if it has none."""
    if isinstance(model, Baseline) or not isinstance(model, FollowsRule):
      return None
    rule = model
    if not isinstance(model, LearningRule):
      one: Any = np.zeros(1, np.float32)
      unused = Prompt(one[None, None], one[None], one[None], one)
      try:
        rule = self._programs.run(_rule, [model], unused)
      except UserError:  # An edited copy of a model has no learning rule.
        return None
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rule)

  def _which_way(self) -> Literal['rule', 'rows', 'shared', 'one pass', 'copies']:
    if self._rule is not None or _fits_weights(self.model):
      return 'rule'
    if hasattr(self.model, 'predict_rows'):
      return 'rows'
    if isinstance(self.model, Baseline):
      return 'shared'
    return 'copies' if one_pass(self.model) is None else 'one pass'

  @property
  def is_linear(self) -> bool:
    """Whether `weights` are known."""
    return self._way == 'rule'

  @property
  def makes_copies(self) -> bool:
    """Whether a batch of queries has as many copies of the context.

    A baseline of another library has one after another.
    """
    is_on_host = isinstance(self.model, HostBaseline)
    return self._way in ('one pass', 'copies') and not is_on_host

  def weights(
    self, x: Float[np.ndarray, 'c d'], y: Float[np.ndarray, ' c']
  ) -> tuple[Float[np.ndarray, ' d'], float]:
    """The weights ω and the offset b after a context: the prediction is ω·x + b."""
    if self._rule is None:
      # Its predictions at the unit vectors are its weights, to the bit.
      return self._batches(_shared, x, y, np.eye(x.shape[1])), 0.0
    z = np.concatenate([x, y[:, None]], axis=1)
    moment = z.T @ z / len(z)
    rule: Any = self._rule
    weights = rule.init + np.einsum('dij,ij->d', rule.update, moment)
    return weights, float(rule.bias + np.sum(rule.bias_update * moment))

  def predictions(
    self,
    x: Float[np.ndarray, 'c d'],
    y: Float[np.ndarray, ' c *k'],
    queries: Float[np.ndarray, 'q d'],
  ) -> Float[np.ndarray, ' q *k']:
    """The prediction for each query after one context."""
    if self._way == 'rule':
      weights, offset = self.weights(x, y)
      return queries @ weights + offset
    ways: dict[str, Callable[..., Any]] = {
      'rows': _rows,
      'shared': _shared,
      'one pass': _in_one_pass,
      'copies': _copies,
    }
    return self._batches(ways[self._way], x, y, queries)

  def means_and_stds(
    self,
    x: Float[np.ndarray, 'c d'],
    y: Float[np.ndarray, ' c'],
    queries: Float[np.ndarray, 'q d'],
  ) -> tuple[Float[np.ndarray, ' q'], Float[np.ndarray, ' q']]:
    """The mean and the standard deviation of each query's label after one context."""
    both = self._batches(_means_and_stds, x, y, queries)
    return both[:, 0], both[:, 1]

  def distribution(
    self,
    x: Float[np.ndarray, 'c d'],
    y: Float[np.ndarray, ' c'],
    queries: Float[np.ndarray, 'q d'],
  ) -> Distribution:
    """The distribution `[q]` of each query's label, whose arrays are of NumPy."""
    return self._batches(_distribution, x, y, queries)

  def _batches(
    self,
    function: Callable[..., Any],
    x: Float[np.ndarray, 'c d'],
    y: Float[np.ndarray, ' c *k'],
    queries: Float[np.ndarray, 'q d'],
  ) -> Any:
    """What a function finds for each query, some of them at a time, in float64."""
    c, d = x.shape
    places = c
    if function in (_shared, _in_one_pass):
      places = _power_of_two(c)
      if self.longest is not None:
        places = min(places, self.longest)
    filled = [(0, places - c)]
    x, y = (np.pad(a, filled + [(0, 0)] * (a.ndim - 1)) for a in (x, y))
    size = self._num_queries(function, places, d + math.prod(y.shape[1:]))
    fewest = _FEWEST_ROWS if self._shares_context(function) else 1
    context = Prompt(
      x=_float32(x)[None],
      y=_float32(y)[None],
      x_query=_float32(queries[:1]),
      y_query=_float32(np.zeros((1, *y.shape[1:]))),
    )
    seen, parts = np.asarray(c, np.int32), []
    for start in range(0, len(queries), size):
      some = queries[start : start + size]
      number = max(_power_of_two(len(some)), fewest)
      padded = np.pad(some, [(0, number - len(some)), (0, 0)], 'edge')
      found = self._programs.run(
        function, [self.model], context, _float32(padded), seen
      )
      found = jax.tree.map(lambda array: np.asarray(array, np.float64), found)
      parts.append(jax.tree.map(operator.itemgetter(slice(len(some))), found))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)

  def _shares_context(self, function: Callable[..., Any]) -> bool:
    """Whether a function gives all queries to a model of rows at once."""
    of_labels = function in (_means_and_stds, _distribution)
    return function is _rows or (of_labels and _has_rows(self.model))

  def _num_queries(self, function: Callable[..., Any], c: int, width: int) -> int:
    """How many queries one call may have; a power of two."""
    if self._shares_context(function):
      most = _OF_ONE // c
    elif function is _shared:
      most = _OF_ONE // (c * width)
    else:
      # Attention has a number for each pair of tokens.
      most = _OF_COPIES // (c * max(c, width))
    return 1 << (min(max(most, 1), _MOST_QUERIES).bit_length() - 1)


def _fits_weights(model: Predictor) -> bool:
  """Whether a model is an estimator whose prediction is linear in the query."""
  return isinstance(model, Estimator) and not getattr(model, 'squares', False)


def _power_of_two(number: int) -> int:
  """The least power of two that is not below a number ≥ 1."""
  return 1 << (number - 1).bit_length()


def _float32(array: np.ndarray) -> Array:
  """The numbers as a model takes them; ValueError for one that is too large."""
  with np.errstate(over='ignore'):
    numbers = np.asarray(array, np.float32)
  assert_all_finite(numbers, allow_nan=True)
  return jnp.asarray(numbers)


# Functions for `Programs.run`. They take a list with one predictor, a prompt with the
# context, the queries, and the number of examples that are seen.


def _rule(predictors: Predictors, context: Prompt) -> LearningRule:
  (model,) = predictors
  return model.learning_rule()


def _rows(
  predictors: Predictors, context: Prompt, queries: Float[Array, 'q d'], seen: Any
) -> Float[Array, ' q *k']:
  (model,) = predictors
  return model.predict_rows(context.x, context.y, queries[None])[0]


def _shared(
  predictors: Predictors,
  context: Prompt,
  queries: Float[Array, 'q d'],
  seen: Int[Array, ''],
) -> Float[Array, ' q *k']:
  (model,) = predictors
  is_seen = jnp.arange(context.x.shape[1]) < seen

  def predict(query: Float[Array, ' d']) -> Float[Array, '*k']:
    return model.predict(Examples(context.x[0], context.y[0], is_seen, query))

  if model.one_by_one:
    return jax.lax.map(predict, queries)
  return jax.vmap(predict)(queries)


def _in_one_pass(
  predictors: Predictors,
  context: Prompt,
  queries: Float[Array, 'q d'],
  seen: Int[Array, ''],
) -> Float[Array, ' q *k']:
  counts = jnp.broadcast_to(seen, (len(queries),))
  return after_some(predictors, _repeated(context, queries), counts)


def _copies(
  predictors: Predictors, context: Prompt, queries: Float[Array, 'q d'], seen: Any
) -> Float[Array, ' q *k']:
  (model,) = predictors
  return model(_repeated(context, queries))


def _means_and_stds(
  predictors: Predictors, context: Prompt, queries: Float[Array, 'q d'], seen: Any
) -> Float[Array, 'q 2']:
  label = _distribution(predictors, context, queries, seen)
  return jnp.stack([label.mean, label.std], axis=-1)


def _distribution(
  predictors: Predictors, context: Prompt, queries: Float[Array, 'q d'], seen: Any
) -> Distribution:
  (model,) = predictors
  if _has_rows(model):
    label = model.distribution_of_rows(context.x, context.y, queries[None])
    return _with_own_edges(label)[0]
  return _with_own_edges(model.distribution(_repeated(context, queries)))


def _has_rows(model: Any) -> bool:
  """Whether a model is asked for the distributions of many queries of one context."""
  return hasattr(model, 'distribution_of_rows')


def _with_own_edges(label: Distribution) -> Distribution:
  """The distribution; each histogram has edges of its own, so that it can be cut."""
  if not isinstance(label, Bars):
    return label
  *shape, n = label.logits.shape
  return Bars(label.logits, jnp.broadcast_to(label.edges, (*shape, n + 1)))


def _repeated(context: Prompt, queries: Float[Array, 'q d']) -> Prompt:
  """A prompt for each query, all with the same context."""
  q = len(queries)
  x, y = (jnp.broadcast_to(a, (q, *a.shape[1:])) for a in (context.x, context.y))
  return Prompt(x, y, queries, jnp.zeros((q, *y.shape[2:]), y.dtype))
