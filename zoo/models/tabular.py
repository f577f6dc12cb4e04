"""A transformer of the rows of a table: the model of prior-data fitted networks."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from zoo.core.distributions import Bars, Classes, NumberOrClass
from zoo.core.errors import UserError, check_count
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.registry import register_model
from zoo.core.taps import Tap
from zoo.mixers.attention import SoftmaxAttention
from zoo.mixers.mixer import Init, Linear, Slot
from zoo.models.heads import shares_below_edges
from zoo.models.layers import Layer, make_norm, norm_tap, normed
from zoo.models.linear_attention import Constant
from zoo.models.token_model import MAX_LAYERS

# A table may have this many labelled rows: attention between them takes little memory.
MOST_ROWS = 1024
# Features are clipped at this many standard deviations of the context.
_LARGEST = 5.0
# A column is constant if its standard deviation is a smaller share of its largest
# entry.
_LEAST_STD = 1e-6


@register_model('tabular')
class Tabular(nnx.Module):
  """A transformer with a token for each row of a table.

  Every row attends to the labelled rows, and to no others, so one pass predicts many
  queries. There are no positions: the order of the labelled rows has no effect. The
  order of the columns and the names of the classes have one. The same weights predict
  numbers and classes, if the task has both.

  The network reads rows that are standardised by the labelled rows of their table:

  - Features are standardised and clipped at 5 standard deviations.
  - A missing feature (NaN) becomes the mean and a mark.
  - A column whose standard deviation is below a millionth of its largest entry counts
    as constant. It is left out, with its marks.
  - The other columns are multiplied by √(num_features / their number), so that padding
    changes nothing.
  - Labels that are numbers are standardised, unless all are equal, so the prediction
    does not depend on their units.

  A context has at most 1,024 examples, since attention takes memory with the square of
  their number.

  The prediction of a number is the mean of a histogram (`zoo.core.distributions.Bars`).
  Its inner edges are quantiles of Student's t distribution with 5 degrees of freedom,
  scaled to the variance 1. The prediction of a class is a vector of logits.

  Args:
    num_features: Largest number of features of a table, ≥ 1.
    num_outputs: Number of entries of a label of the task: 1 (the default) for numbers,
      up to `num_classes` for classes, or 1 + `num_classes` for both. The weights do not
      depend on it. Labels with 1 + `num_classes` entries are always read as a number
      and a class, so that a config for a task with so many classes is refused.
    num_classes: Largest number of classes, ≥ 2; 10 by default.
    num_layers: Number of layers, from 1 to 1000; 3 by default.
    num_loops: Number of times that the layers are applied, with the same weights, from
      1 to 1000; 2 by default.
    num_heads: Number of heads, a divisor of the width; 4 by default.
    width: Number of entries of each token, from 1 to 2²⁰; 96 by default.
    feed_forward: The network after attention: 'gelu' (the default), 'swiglu', 'linear'
      or 'none'.
    hidden_features: Number of hidden entries of that network, ≥ 1; None, the default,
      means 2 · width.
    norm: The norm before attention, the network and the readout: 'rms' (the default),
      'layer' or 'none'.
    num_bars: Number of bars of the histogram, ≥ 2; 64 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range, or if `num_heads` does not divide the
      width.

  Example:
    >>> model = zoo.models.Tabular(
    ...   num_features=8, num_layers=1, num_loops=1, width=8, rngs=nnx.Rngs(0)
    ... )
    >>> x, y = jnp.ones((1, 5, 3)), jnp.arange(5.0)[None]
    >>> print(model.predict_rows(x, y, x_queries=x[:, :2]).round(2))  # not trained
    [[2.01 2.01]]

  References:
    TabPFN, Hollmann et al., arXiv 2207.01848.
  """

  roles = {'read_in': 'embedding', 'read_labels': 'embedding', 'read_out': 'embedding'}
  shortcuts = True
  order_invariant = True
  reads_missing = True  # Features may be NaN.
  standardizes = True  # The units of features and numbers do not matter.
  context_length = MOST_ROWS

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    num_classes: int = 10,
    num_layers: int = 3,
    num_loops: int = 2,
    num_heads: int = 4,
    width: int = 96,
    feed_forward: str = 'gelu',
    hidden_features: int | None = None,
    norm: str = 'rms',
    num_bars: int = 64,
    *,
    rngs: nnx.Rngs,
  ):
    self.num_features = check_count('num_features', num_features)
    self.num_classes = check_count('num_classes', num_classes, minimum=2)
    self.num_outputs = check_count('num_outputs', num_outputs, maximum=1 + num_classes)
    check_count('num_layers', num_layers, maximum=MAX_LAYERS)
    self.num_loops = check_count('num_loops', num_loops, maximum=MAX_LAYERS)
    check_count('width', width, maximum=2**20)
    self.num_bars = check_count('num_bars', num_bars, minimum=2)
    if hidden_features is None and feed_forward != 'none':
      hidden_features = 2 * width
    init = Init(None, 1 / math.sqrt(2 * num_layers * num_loops))
    read = functools.partial(Linear, kernel_init=init.kernel(), rngs=rngs)
    # A row has each feature, and whether it is NaN.
    self.read_in = read(2 * num_features, width)
    # A label has the number, the classes, and whether the label is there.
    self.read_labels = read(2 + num_classes, width)
    self.embed_tap = Tap(axes='b n w', kind='embed')
    slot = Slot(width, num_heads, init)
    self.layers = nnx.List(
      Layer(
        width,
        SoftmaxAttention(slot, causal=False, rngs=rngs),
        feed_forward,
        hidden_features,
        norm,
        init,
        rngs=rngs,
      )
      for _ in range(num_layers)
    )
    self.norm = make_norm(norm, width, rngs)
    self.read_out = read(width, num_classes + num_bars)
    self.final_norm_tap = norm_tap(self.norm, 'final.norm')
    self.final_tap = Tap('final.stream', 'b n w', kind='stream')
    self.read_out_tap = Tap('read_out', 'b n k', kind='readout')
    self.edges = Constant(_edges(num_bars))

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    """Predicts the label of each prompt's query.

    Args:
      prompt: Prompts `[b]` with labels `[b, c]` that are numbers, one-hot vectors
        `[b, c, k]`, or vectors `[b, c, 1 + num_classes]` of both.

    Returns:
      Numbers `[b]`, logits `[b, k]`, or both in one vector.

    Raises:
      UserError: If there are more features, classes or examples than the model takes.
    """
    predictions = self._predictions(prompt, self._outputs_of_queries(prompt))
    return predictions[:, 0]

  def distribution(self, prompt: Prompt) -> Bars | Classes | NumberOrClass:
    """Returns the distribution of the label of each prompt's query.

    Args:
      prompt: Prompts `[b]`, as the model takes them.

    Returns:
      `Bars` for numbers, `Classes` for one-hot labels, and `NumberOrClass` for both.

    Raises:
      UserError: If there are more features, classes or examples than the model takes.
    """
    outputs = self._outputs_of_queries(prompt)
    return self._of_kind(prompt, outputs)[:, 0]

  def predict_rows(
    self,
    x: Float[Array, 'b c d'],
    y: Float[Array, 'b c *k'],
    x_queries: Float[Array, 'b q d'],
  ) -> Float[Array, 'b q *k']:
    """Predicts the labels of many queries of each context.

    Args:
      x: Features of the labelled rows, `[b, c, d]`; NaN is a missing feature.
      y: Their labels, as in a prompt: numbers `[b, c]` or vectors `[b, c, k]`.
      x_queries: Features of the queries, `[b, q, d]`.

    Returns:
      The predictions `[b, q]` or `[b, q, k]`, each the same as for a prompt with this
      query.

    Raises:
      UserError: If there are more features, classes or examples than the model takes.
    """
    prompt = _prompt_of(x, y, x_queries)
    return self._predictions(prompt, self._after(prompt, x_queries))

  def distribution_of_rows(
    self,
    x: Float[Array, 'b c d'],
    y: Float[Array, 'b c *k'],
    x_queries: Float[Array, 'b q d'],
  ) -> Bars | Classes | NumberOrClass:
    """Returns the distributions of the labels of many queries of each context.

    Args:
      x: Features of the labelled rows, `[b, c, d]`; NaN is a missing feature.
      y: Their labels, as in a prompt: numbers `[b, c]` or vectors `[b, c, k]`.
      x_queries: Features of the queries, `[b, q, d]`.

    Returns:
      Distributions `[b, q]`, of the same kinds as those of `distribution`.

    Raises:
      UserError: If there are more features, classes or examples than the model takes.
    """
    prompt = _prompt_of(x, y, x_queries)
    return self._of_kind(prompt, self._after(prompt, x_queries))

  def losses_of_rows(
    self, prompt: Prompt, num_seen: Int[Array, ' b'], most_seen: int
  ) -> Float[Array, 'b t']:
    """Returns the negative log likelihood of the label of each row, the query's last.

    Args:
      prompt: Prompts `[b]` whose `y_query` is a label, too.
      num_seen: Number of labelled rows of each prompt, `[b]`, from 1 to c. The losses
        of these rows are meaningless, because the model has seen their labels.
      most_seen: The largest value that a `num_seen` can have.

    Returns:
      A loss for each row, `[b, c + 1]`, in nats.

    Raises:
      UserError: If there are more features or classes than the model takes, or if
        `most_seen` is more than 1,024.
    """
    labels = self._labels(jnp.concatenate([prompt.y, prompt.y_query[:, None]], axis=1))
    return -self.outputs(prompt.features, labels, num_seen, most_seen).log_prob(labels)

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b t w']]:
    """Returns the embedded rows, then the rows after each layer of each loop.

    Args:
      prompt: Prompts `[b]`, as the model takes them.

    Returns:
      1 + num_loops · num_layers arrays `[b, c + 1, w]`.
    """
    tokens, seen, _ = self._embedded(*self._rows(prompt, prompt.x_query[:, None]))
    return self._states(tokens, seen)

  def read(
    self, tokens: Float[Array, 'b t w'], prompt: Prompt
  ) -> Float[Array, 'b t *k']:
    """Returns the readout's predictions from the tokens of any layer.

    Args:
      tokens: Tokens between layers, such as those of `layer_tokens`.
      prompt: The prompts to which they belong.
    """
    *_, units = self._embedded(*self._rows(prompt, prompt.x_query[:, None]))
    return self._predictions(prompt, self._read(tokens, units))

  def outputs(
    self,
    x: Float[Array, 'b t d'],
    labels: Float[Array, 'b t m'],
    num_seen: Int[Array, ' b'],
    most_seen: int,
  ) -> NumberOrClass:
    """Returns the distributions of the labels of every row.

    Args:
      x: Features, `[b, t, d]`; NaN is a missing one.
      labels: The number, then the class as a one-hot vector; one of them is 0.
      num_seen: Number of labelled rows of each table, `[b]`, which are its first rows.
      most_seen: The largest value that a `num_seen` can have.

    Returns:
      The distribution of the number and the class of each row, `[b, t]`.

    Raises:
      UserError: If there are more features than the model takes, or if `most_seen` is
        more than 1,024.
    """
    tokens, seen, units = self._embedded(x, labels, num_seen, most_seen)
    tokens = self._states(tokens, seen)[-1]
    return self._read(self.final_tap(tokens), units)

  def _states(
    self, tokens: Float[Array, 'b t w'], seen: Bool[Array, 'b k']
  ) -> list[Float[Array, 'b t w']]:
    """Returns the embedded tokens, then the tokens after each layer of each loop."""
    states = [tokens]
    for _ in range(self.num_loops):
      for layer in self.layers:
        states.append(layer(states[-1], seen=seen))
    return states

  def _read(
    self, tokens: Float[Array, 'b t w'], units: Float[Array, 'b 2']
  ) -> NumberOrClass:
    tap = None if self.shortcuts else self.final_norm_tap
    outputs = self.read_out_tap(self.read_out(normed(self.norm, tokens, tap)))
    outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    # The edges are in the units of the labels.
    mean, std = units[:, :1], units[:, 1:]
    edges = mean + std * self.edges[...].astype(outputs.dtype)[None]
    shape = *outputs.shape[:2], self.num_bars + 1
    bars = Bars(
      outputs[..., self.num_classes :], jnp.broadcast_to(edges[:, None], shape)
    )
    return NumberOrClass(bars, Classes(outputs[..., : self.num_classes]))

  def _outputs_of_queries(self, prompt: Prompt) -> NumberOrClass:
    prompt = checked_prompt(prompt)
    return self._after(prompt, prompt.x_query[:, None])

  def _after(self, prompt: Prompt, x_queries: Float[Array, 'b q d']) -> NumberOrClass:
    """Returns the outputs `[b, q]` for queries after the whole context."""
    outputs = self.outputs(*self._rows(prompt, x_queries))
    return jax.tree.map(lambda array: array[:, prompt.x.shape[1] :], outputs)

  def _rows(
    self, prompt: Prompt, x_queries: Float[Array, 'b q d']
  ) -> tuple[Float[Array, 'b t d'], Float[Array, 'b t m'], Int[Array, ' b'], int]:
    """Returns the arguments of `outputs` for queries after the whole context."""
    b, c, _ = prompt.x.shape
    labels = self._labels(prompt.y)
    labels = jnp.pad(labels, ((0, 0), (0, x_queries.shape[1]), (0, 0)))
    x = jnp.concatenate([prompt.x, x_queries], axis=1)
    return x, labels, jnp.full(b, c), c

  def _labels(self, y: Float[Array, 'b t *k']) -> Float[Array, 'b t m']:
    """Returns labels as a number and one-hot classes.

    Raises:
      UserError: If there are too many classes.
    """
    if y.ndim == 2:
      return jnp.pad(y[..., None], ((0, 0), (0, 0), (0, self.num_classes)))
    k = y.shape[-1]
    if k == 1 + self.num_classes:
      return y
    if k > self.num_classes:
      raise UserError(
        f'the prompt has {k} classes; the model takes at most {self.num_classes}, or '
        f'labels of {1 + self.num_classes} entries: a number, then the classes'
      )
    return jnp.pad(y, ((0, 0), (0, 0), (1, self.num_classes - k)))

  def _embedded(
    self,
    x: Float[Array, 'b t d'],
    labels: Float[Array, 'b t m'],
    num_seen: Int[Array, ' b'],
    most_seen: int,
  ) -> tuple[Float[Array, 'b t w'], Bool[Array, 'b k'], Float[Array, 'b 2']]:
    """Returns the tokens of rows, which rows are labelled, and the scale of numbers.

    The scale is the mean and the standard deviation of the labels.

    Raises:
      UserError: If there are too many features or examples.
    """
    _, t, d = x.shape
    if d > self.num_features:
      raise UserError(
        f'the model is for {self.num_features} features; the prompt has {d}, and it '
        'must have at most as many'
      )
    if most_seen > self.context_length:
      raise UserError(
        f'the prompt has {most_seen:,} examples; the model takes at most '
        f'{self.context_length:,}, and zoo.Regressor or zoo.Classifier cuts a longer '
        'table into parts'
      )
    seen = jnp.arange(t)[None] < num_seen[:, None]
    missing = jnp.isnan(x)
    mean, std = _moments(jnp.where(missing, 0, x), seen[..., None] & ~missing)
    varies = std > 0
    x = jnp.where(missing, 0, (x - mean) / jnp.where(varies, std, 1))
    x = jnp.where(varies, jnp.clip(x, -_LARGEST, _LARGEST), 0)
    columns = jnp.maximum(jnp.sum(varies.astype(x.dtype), -1, keepdims=True), 1)
    x *= jnp.sqrt(self.num_features / columns)
    missing = (missing & varies).astype(x.dtype)
    pad = (0, 0), (0, 0), (0, self.num_features - d)
    features = jnp.concatenate([jnp.pad(x, pad), jnp.pad(missing, pad)], axis=-1)
    mean, std = _moments(labels[..., :1], seen[..., None])
    scale = jnp.where(std > 0, std, 1)
    numbers = (labels[..., :1] - mean) / scale
    is_labelled = jnp.ones_like(numbers)
    shown = jnp.concatenate([numbers, labels[..., 1:], is_labelled], axis=-1)
    shown *= seen[..., None].astype(shown.dtype)
    tokens = self.embed_tap(self.read_in(features) + self.read_labels(shown))
    seen = seen[:, : max(most_seen, 1)]  # A softmax over no rows has no value.
    return tokens, seen, jnp.concatenate([mean, scale], axis=-1)[:, 0]

  def _of_kind(
    self, prompt: Prompt, outputs: NumberOrClass
  ) -> Bars | Classes | NumberOrClass:
    """Returns the distribution of labels of the same kind as those of the prompt."""
    if prompt.y.ndim == 2:
      return outputs.numbers
    k = prompt.y.shape[-1]
    return outputs if k > self.num_classes else Classes(outputs.classes.logits[..., :k])

  def _predictions(
    self, prompt: Prompt, outputs: NumberOrClass
  ) -> Float[Array, 'b t *k']:
    label = self._of_kind(prompt, outputs)
    if isinstance(label, Bars):
      return label.mean
    if isinstance(label, Classes):
      return label.logits
    numbers = label.numbers.mean[..., None]
    return jnp.concatenate([numbers, label.classes.logits], axis=-1)


def _prompt_of(
  x: Float[Array, 'b c d'], y: Float[Array, 'b c *k'], x_queries: Float[Array, 'b q d']
) -> Prompt:
  """Returns a prompt with the first query; its labels have the kind of all labels."""
  prompt = Prompt(x, y, x_queries[:, 0], jnp.zeros_like(y[:, 0]))
  return checked_prompt(prompt)


def _moments(
  values: Float[Array, 'b t m'], counts: Bool[Array, 'b t m']
) -> tuple[Float[Array, 'b 1 m'], Float[Array, 'b 1 m']]:
  """Returns the mean and standard deviation of the entries that count.

  The standard deviation is 0 if they are equal.
  """
  number = jnp.sum(counts.astype(values.dtype), axis=1, keepdims=True)
  number = jnp.maximum(number, 1)
  mean = jnp.sum(values, axis=1, where=counts, keepdims=True) / number
  squares = jnp.square(values - mean)
  std = jnp.sqrt(jnp.sum(squares, axis=1, where=counts, keepdims=True) / number)
  largest = jnp.max(jnp.abs(values), axis=1, where=counts, initial=0.0, keepdims=True)
  return mean, jnp.where(std > _LEAST_STD * largest, std, 0)


def _edges(num_bars: int) -> Float[Array, ' m']:
  """Returns quantiles of a t distribution; half of each tail is beyond its bar."""
  from scipy import stats  # It is slow to import.

  quantiles = stats.t.ppf(shares_below_edges(num_bars), df=5) * math.sqrt(3 / 5)
  return jnp.asarray(quantiles, float)
