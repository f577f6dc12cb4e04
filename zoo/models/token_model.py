"""The base class of models that read tokens with an initial guess of each label."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.distributions import Classes, Distribution
from zoo.core.errors import UserError, check_count, check_name, check_truth
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.taps import Tap
from zoo.models.heads import at_head, check_head, num_reads
from zoo.models.initial_guess import GUESSES, InitialGuess
from zoo.models.tokens import (
  LAYOUTS,
  at_examples,
  lay_out,
  num_tokens,
  token_width,
)

MAX_LAYERS = 1000  # Python makes and traces layers one by one.


class TokenModel(nnx.Module):
  """Base class of models that turn a prompt into tokens and predict from the tokens.

  A subclass defines `body`, which maps the tokens of prompts to outputs at some of the
  tokens. This class adds the rest: the tokens, in one of the layouts of
  `zoo.models.tokens.LAYOUTS`; the initial guess of the labels; the predictions, which
  are the outputs of `body`; and distributions of the labels, if the head has one. If
  the body is causal and the layout is not 'joint', one pass predicts all examples, each
  from those before it.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    num_outputs: Number k of outputs of a prediction, ≥ 1. The default, 1, is for labels
      that are numbers. Several outputs are the logits of classes.
    tokens: How a prompt becomes tokens: 'interleaved' (the default), 'shifted' or
      'joint'; `zoo.models.tokens.LAYOUTS` shows the tokens of each.
    guess: Initial guess of each label, made before any example is seen: one of 'zero'
      (the default), 'fixed', 'linear', 'network', 'residual' and 'residual_network',
      which `zoo.models.initial_guess.GUESSES` explains.
    guess_weights: Slope g of the guess 'fixed', g·x + β: a number or `[d]`; 0 by
      default.
    guess_bias: Offset β of that guess, in the units of the labels; 0 by default.
    causal: Whether no output depends on a later token; True by default. If False, the
      model predicts the query alone.
    head: What the outputs say of a label that is a number: 'point' (the default) is the
      prediction, 'gaussian' the mean and the log variance of a normal distribution, and
      'bars' the logits of a histogram.
    edges: Edges of the bars of the head 'bars', increasing, `[n + 1]` with n ≥ 2, such
      as `zoo.models.quantile_edges(task)`; None, the default, for other heads.
    rngs: Random keys of the initial weights.

  Attributes:
    num_trained_loops: Number of outputs that `body` returns for a looped model, one for
      each trained loop; 1 without loops.
    guesses: The values that the argument `guess` may have.
    num_reads: Number of outputs that `body` must return for each token. It is
      `num_outputs` for the head 'point', 2 for 'gaussian', and the number of bars for
      'bars'.
    predicts_all: Whether the model predicts all examples, and not the query alone.

  Raises:
    UserError: If an argument is out of its range, if `guess_weights` or `guess_bias` is
      not 0 with a guess other than 'fixed', if `head` is not 'point' with several
      outputs, or if `edges` is missing for the head 'bars' or given for another one.

  Example:
    >>> class RunningSum(zoo.models.TokenModel):
    ...   def body(self, tokens, at):
    ...     return jnp.cumsum(tokens[..., -1:], axis=1)[:, at]
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = RunningSum(num_features=2, rngs=nnx.Rngs(0))
    >>> print(np.round(model.predictions(task.sample(jax.random.key(0), 1)), 2))
    [[ 0.   -0.02 -0.18 -0.97  0.1 ]]
  """

  num_trained_loops = 1
  guesses = tuple(GUESSES)

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    tokens: str = 'interleaved',
    guess: str = 'zero',
    guess_weights: ArrayLike | Sequence[float] = 0.0,
    guess_bias: float = 0.0,
    causal: bool = True,
    head: str = 'point',
    edges: ArrayLike | Sequence[float] | None = None,
    *,
    rngs: nnx.Rngs,
  ):
    self.num_features = check_count('num_features', num_features)
    self.num_outputs = check_count('num_outputs', num_outputs)
    self.head, self.edges = head, check_head(head, num_outputs, edges)
    self.num_reads = num_reads(head, num_outputs, self.edges)
    self.layout = check_name('tokens', tokens, LAYOUTS)
    self.guess = InitialGuess(
      guess, num_features, num_outputs, guess_weights, guess_bias, rngs=rngs
    )
    self.guess_tap = Tap(axes='b n k', kind='guess')
    self.embed_tap = Tap(axes='b n m', kind='embed')
    self.token_width = token_width(tokens, num_features, num_outputs)
    # In the layout 'joint' the outputs at examples would depend on their own labels.
    self.predicts_all = check_truth('causal', causal) and tokens != 'joint'

  @abc.abstractmethod
  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Array:
    """Returns the outputs at some of the tokens.

    At an example, the outputs must not depend on later tokens. A model that is not
    causal, or whose layout is 'joint', is asked for the last token alone.

    Args:
      tokens: The tokens of prompts, `[b, n, m]`.
      at: The tokens whose outputs are returned, t of them.

    Returns:
      The outputs, `[b, t, num_reads]`. A looped model returns `[l, b, t, num_reads]`,
      the outputs after each of its l = `num_trained_loops` loops. The last ones are the
      prediction, and the loss is the mean over all loops.
    """

  def embed(self, prompt: Prompt) -> Float[Array, 'b n m']:
    """Returns the tokens of prompts, with this model's guess of each label.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      The tokens, `[b, n, m]`, in the layout of the model.

    Raises:
      UserError: If the prompts have another number of features or outputs than the
        model.
    """
    prompt = checked_prompt(prompt, 'model', self.num_features)
    k = prompt.labels.shape[-1]
    if k != self.num_outputs:
      raise UserError(f'the model has {self.num_outputs} outputs; the prompt has {k}')
    guess = self.guess_tap(self.guess(prompt.features))
    if self.guess.is_residual:
      corrected = prompt.labels - guess[:, :-1]
      prompt = dataclasses.replace(prompt, y=corrected.reshape(prompt.y.shape))
      # 0 · guess would be NaN if the guess overflows.
      guess = jnp.zeros_like(guess)
    return self.embed_tap(lay_out(prompt, guess, self.layout))

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    """Predicts the label of each prompt's query.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      Predictions `[b]`, or logits `[b, k]` if there are several outputs.

    Raises:
      UserError: If the prompts have another number of features or outputs than the
        model.
    """
    return self.loop_predictions(prompt, every=False)[-1, :, 0]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """Predicts each example from those before it, and the query from all.

    Args:
      prompt: Prompts `[b]` with d features and c examples.

    Returns:
      Predictions `[b, c + 1]`, that for the query last, or logits `[b, c + 1, k]`.

    Raises:
      UserError: If the model predicts the query alone, or if the prompts have another
        number of features or outputs than the model.
    """
    return self.loop_predictions(prompt, every=True)[-1]

  @property
  def has_distribution(self) -> bool:
    """Whether the model predicts a distribution, by its head or for classes."""
    return self.head != 'point' or self.num_outputs > 1

  def distribution(self, prompt: Prompt) -> Distribution | Classes:
    """Returns the distribution of the observed label of each prompt's query.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      A distribution with batch shape `[b]`.

    Raises:
      UserError: If the head is 'point' and the model has one output, or if the prompts
        have another number of features or outputs than the model.
    """
    return self.loop_distributions(prompt, every=False)[-1, :, 0]

  def distributions(self, prompt: Prompt) -> Distribution | Classes:
    """Returns the distribution of each example's label, given the examples before it.

    Args:
      prompt: Prompts `[b]` with d features and c examples.

    Returns:
      A distribution with batch shape `[b, c + 1]`, that of the query last.

    Raises:
      UserError: If the model predicts the query alone, if the head is 'point' and the
        model has one output, or if the prompts have another number of features or
        outputs than the model.
    """
    return self.loop_distributions(prompt, every=True)[-1]

  def loop_distributions(self, prompt: Prompt, every: bool) -> Distribution | Classes:
    """Returns the distributions of the labels after each trained loop.

    Args:
      prompt: Prompts `[b]` with d features.
      every: Whether to predict every example (t = c + 1) or the query alone (t = 1).

    Returns:
      A distribution with batch shape `[l, b, t]`; l is 1 for a model without loops.

    Raises:
      UserError: If the head is 'point' and the model has one output, if `every` is True
        and the model predicts the query alone, or if the prompts have another number of
        features or outputs than the model.
    """
    if not self.has_distribution:
      raise UserError(
        f'{type(self).__name__} has head = {self.head!r}, which predicts a number '
        "without a distribution; it must be 'gaussian' or 'bars' for one"
      )
    outputs = self._outputs(prompt, every)
    if self.head == 'point':
      return Classes(self.finish(outputs, prompt))
    return self._at_head(outputs, prompt)

  def loop_predictions(self, prompt: Prompt, every: bool) -> Float[Array, 'l b t *k']:
    """Returns the predictions after each trained loop.

    Args:
      prompt: Prompts `[b]` with d features.
      every: Whether to predict every example (t = c + 1) or the query alone (t = 1).

    Returns:
      Predictions `[l, b, t]`, or logits `[l, b, t, k]`; l is 1 for a model without
      loops.

    Raises:
      UserError: If `every` is True and the model predicts the query alone, or if the
        prompts have another number of features or outputs than the model.
    """
    return self.finish(self._outputs(prompt, every), prompt)

  def _outputs(self, prompt: Prompt, every: bool) -> Float[Array, 'l b t r']:
    """Returns the outputs of the body after each trained loop, or raises UserError."""
    if every and not self.predicts_all:
      raise UserError(
        f'{type(self).__name__} predicts the query alone: its tokens are '
        f'{self.layout!r}, or it is not causal'
      )
    at = at_examples(self.layout) if every else slice(-1, None)
    outputs = self.body(self.embed(prompt), at)
    length = len(prompt.x[0]) + 1 if every else 1
    shape = len(prompt.x), length, self.num_reads
    if outputs.ndim not in (3, 4) or outputs.shape[-3:] != shape:
      raise UserError(
        f'{type(self).__name__}.body(tokens, {at}) has shape {outputs.shape}; it must '
        f'be {shape}, with an axis of loops before it or without'
      )
    return outputs.reshape(-1, *shape)

  def finish(
    self, outputs: Float[Array, 'l b t r'], prompt: Prompt
  ) -> Float[Array, 'l b t *k']:
    """Returns the predictions from the outputs at the last t examples.

    Args:
      outputs: Outputs of `body`, `[l, b, t, num_reads]`.
      prompt: The prompts to which they belong.

    Returns:
      Predictions `[l, b, t]`, or logits `[l, b, t, k]`.
    """
    if self.head != 'point':
      return self._at_head(outputs, prompt).mean.astype(outputs.dtype)
    if self.guess.is_residual:
      # `embed` uses the same guess.
      guess = self.guess_tap(self.guess(prompt.features))
      outputs += guess[None, :, -outputs.shape[2] :]
    return outputs if self.num_outputs > 1 else outputs[..., 0]

  def _at_head(self, outputs: Float[Array, 'l b t r'], prompt: Prompt) -> Distribution:
    """Returns the distributions of numbers from the outputs at the last t examples."""
    guess = None
    if self.guess.is_residual:
      # `embed` uses the same guess.
      guess = self.guess_tap(self.guess(prompt.features))
      guess = guess[None, :, -outputs.shape[2] :]
      guess = jnp.broadcast_to(guess, (*outputs.shape[:-1], 1))
    return at_head(self.head, outputs, guess, self.edges)

  def check_length(self, prompt_tokens: int, context_length: int) -> None:
    """Checks that a prompt is not too long for the model.

    Args:
      prompt_tokens: Number of tokens of the prompt.
      context_length: Number of examples for which the model has places.

    Raises:
      UserError: If there are more tokens than `context_length` examples make.
    """
    if prompt_tokens > num_tokens(self.layout, context_length):
      raise UserError(
        f'the prompt has {prompt_tokens} tokens; the model has places for '
        f'{num_tokens(self.layout, context_length)}, those of {context_length} examples'
      )
