"""The base of models that read tokens with an initial guess of each label."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.distributions import Classes, Distribution
from zoo.core.errors import UserError, check_count, check_name, check_truth
from zoo.core.prompt import Prompt, check_prompt
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

MAX_LAYERS = 1000  # Python makes and traces layers one by one


class TokenModel(nnx.Module):
  """A model whose subclass defines `body`, from a prompt's tokens to outputs at some.

  This class adds the rest: the tokens, in one of `zoo.models.tokens.LAYOUTS`; their
  initial guess of the labels, one of `zoo.models.initial_guess.GUESSES`; and all
  predictions, trained or not, which are the outputs of `body`. If the body is causal
  and the layout is not `joint`, they are for all examples in one pass.

  With a head that gives a distribution, one of `zoo.models.heads.HEADS`, the body has
  `num_reads` outputs, and a prediction is the mean of the distribution.
  """

  num_trained_loops = 1  # as many as `body` returns outputs of
  guesses = tuple(GUESSES)  # what the argument `guess` may be

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
    """
    Args:
      num_features: d ≥ 1.
      num_outputs: numbers that a prediction has, k ≥ 1.
      tokens: how a prompt becomes tokens, one of LAYOUTS.
      guess: the initial guess of each label, one of GUESSES.
      guess_weights: g of the guess 'fixed', g·x + β; a number or `[d]`.
      guess_bias: β of that guess, in the units of the labels.
      causal: False if a token may depend on later ones.
      head: what the outputs say of a label that is a number, one of HEADS.
      edges: the edges of the bars of the head 'bars', increasing, `[n + 1]`.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
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
    # Otherwise the outputs at examples would depend on their own labels.
    self.predicts_all = check_truth('causal', causal) and tokens != 'joint'

  @abc.abstractmethod
  def body(self, tokens: Float[Array, 'b n m'], at: slice) -> Array:
    """The outputs at the tokens `at`, `[b, t, num_reads]`.

    `num_reads` is k, the number of outputs of a prediction, but for heads with a
    distribution. A looped model has a first axis: the outputs after each of its
    `num_trained_loops` loops; the last are the prediction, and the loss is the mean
    over all. At examples the outputs may depend on no later token. A model that is not
    causal, or whose tokens are `joint`, is asked for the last token alone, `t` = 1.
    """

  def embed(self, prompt: Prompt) -> Float[Array, 'b n m']:
    """The tokens of prompts, with this model's guess of each label.

    Raises UserError for prompts with the wrong number of features or outputs.
    """
    check_prompt(prompt, 'model', self.num_features)
    k = prompt.labels.shape[-1]
    if k != self.num_outputs:
      raise UserError(f'the model has {self.num_outputs} outputs; the prompt has {k}')
    guess = self.guess_tap(self.guess(prompt.features))
    if self.guess.is_residual:
      corrected = prompt.labels - guess[:, :-1]
      prompt = dataclasses.replace(prompt, y=corrected.reshape(prompt.y.shape))
      guess = jnp.zeros_like(guess)  # not 0 · guess, which is NaN if it overflows
    return self.embed_tap(lay_out(prompt, guess, self.layout))

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    """The prediction for each prompt's query; raises UserError as `embed` does."""
    return self.loop_predictions(prompt, every=False)[-1, :, 0]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """The prediction for each example from those before it, that for the query last.

    Raises UserError for a model that predicts the query alone, and as `embed` does.
    """
    return self.loop_predictions(prompt, every=True)[-1]

  @property
  def has_distribution(self) -> bool:
    """Whether the model has a distribution: its head has one, or it has classes."""
    return self.head != 'point' or self.num_outputs > 1

  def distribution(self, prompt: Prompt) -> Distribution | Classes:
    """The distribution of each query's observed label, `[b]`.

    Raises UserError for the head 'point' with one output, and as `embed` does.
    """
    return self.loop_distributions(prompt, every=False)[-1, :, 0]

  def distributions(self, prompt: Prompt) -> Distribution | Classes:
    """The distribution for each example from those before it, `[b, t]`, query last.

    Raises UserError as `predictions` and `distribution` do.
    """
    return self.loop_distributions(prompt, every=True)[-1]

  def loop_distributions(self, prompt: Prompt, every: bool) -> Distribution | Classes:
    """The distributions after each trained loop, `[l, b, t]`, as `loop_predictions`.

    Raises UserError as `predictions` and `distribution` do.
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
    """The predictions after each trained loop, for every example or the query alone.

    l is 1 for a model without loops. Raises UserError as `predictions` does.
    """
    return self.finish(self._outputs(prompt, every), prompt)

  def _outputs(self, prompt: Prompt, every: bool) -> Float[Array, 'l b t r']:
    """The outputs of the body after each trained loop; UserError as `predictions`."""
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
    """The predictions from the outputs at the last t examples."""
    if self.head != 'point':
      return self._at_head(outputs, prompt).mean.astype(outputs.dtype)
    if self.guess.is_residual:
      guess = self.guess_tap(self.guess(prompt.features))  # the same as in `embed`
      outputs += guess[None, :, -outputs.shape[2] :]
    return outputs if self.num_outputs > 1 else outputs[..., 0]

  def _at_head(self, outputs: Float[Array, 'l b t r'], prompt: Prompt) -> Distribution:
    """The distributions of numbers from the outputs at the last t examples."""
    guess = None
    if self.guess.is_residual:
      guess = self.guess_tap(self.guess(prompt.features))  # the same as in `embed`
      guess = guess[None, :, -outputs.shape[2] :]
      guess = jnp.broadcast_to(guess, (*outputs.shape[:-1], 1))
    return at_head(self.head, outputs, guess, self.edges)

  def check_length(self, prompt_tokens: int, context_length: int) -> None:
    """Raises UserError for more tokens than `context_length` examples make."""
    if prompt_tokens > num_tokens(self.layout, context_length):
      raise UserError(
        f'the prompt has {prompt_tokens} tokens; the model has places for '
        f'{num_tokens(self.layout, context_length)}, those of {context_length} examples'
      )
