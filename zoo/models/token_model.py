"""The base of models that read tokens with an initial guess of each label."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from zoo.core.errors import UserError, check_count, check_name, check_truth
from zoo.core.prompt import Prompt
from zoo.models.initial_guess import InitialGuess
from zoo.models.tokens import (
  LAYOUTS,
  at_examples,
  lay_out,
  num_tokens,
  token_width,
)


class TokenModel(nnx.Module):
  """A model whose subclass defines `body`, from a prompt's tokens to outputs at each.

  This class adds the rest: the tokens, in one of `zoo.models.tokens.LAYOUTS`; their
  initial guess of the labels, one of `zoo.models.initial_guess.GUESSES`; and, if the
  body is causal and the layout is not `joint`, the predictions for all examples in one
  pass.
  """

  def __init__(
    self,
    num_features: int,
    num_outputs: int = 1,
    tokens: str = 'interleaved',
    guess: str = 'zero',
    guess_weights: ArrayLike | Sequence[float] = 0.0,
    guess_bias: float = 0.0,
    causal: bool = True,
    *,
    rngs: nnx.Rngs,
  ):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.num_outputs = check_count('num_outputs', num_outputs)
    self.layout = check_name('tokens', tokens, LAYOUTS)
    self.guess = InitialGuess(
      guess, num_features, num_outputs, guess_weights, guess_bias, rngs=rngs
    )
    self.token_width = token_width(tokens, num_features, num_outputs)
    if tokens == 'joint' or not check_truth('causal', causal):
      # The outputs at examples would depend on their own labels.
      self.predictions = None  # pyright: ignore[reportAttributeAccessIssue]

  def __init_subclass__(cls, **given: Any) -> None:
    super().__init_subclass__(**given)
    # What a parent computes beside its predictions would not agree with new ones.
    if _redefines(cls, ('body',), than='outputs_at'):
      cls.outputs_at = TokenModel.outputs_at
    for name in ('loop_predictions', 'layer_tokens'):
      if _redefines(cls, ('body', 'outputs_at', 'predictions', '__call__'), than=name):
        setattr(cls, name, None)

  def body(self, tokens: Float[Array, 'b n m']) -> Float[Array, 'b n k']:
    """The outputs at each token, of which only those at features are read.

    With `joint` tokens it may return the query's output alone.
    """
    raise NotImplementedError(f'{type(self).__name__} has no body')

  def outputs_at(self, tokens: Float[Array, 'b n m'], at: slice) -> Array:
    """The outputs `[b, t, k]` at some tokens, those of `body` but for rounding.

    A subclass may compute them faster than all outputs.
    """
    return self.body(tokens)[:, at]

  def embed(self, prompt: Prompt) -> Float[Array, 'b n m']:
    """The tokens of prompts, with this model's guess of each label.

    Raises UserError for prompts with the wrong number of features or outputs.
    """
    prompt.check_features('model', self.num_features)
    k = prompt.labels.shape[-1]
    if k != self.num_outputs:
      raise UserError(f'the model has {self.num_outputs} outputs; the prompt has {k}')
    guess = self.guess(prompt.features)
    if self.guess.is_residual:
      corrected = prompt.labels - guess[:, :-1]
      prompt = dataclasses.replace(prompt, y=corrected.reshape(prompt.y.shape))
      guess = jnp.zeros_like(guess)  # not 0 · guess, which is NaN if it overflows
    return lay_out(prompt, guess, self.layout)

  def __call__(self, prompt: Prompt) -> Float[Array, ' b *k']:
    """The prediction for each prompt's query; raises UserError as `embed` does."""
    outputs = self.outputs_at(self.embed(prompt), slice(-1, None))
    return self._finish(outputs, prompt)[:, 0]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """The prediction for each example from those before it, that for the query last."""
    outputs = self.outputs_at(self.embed(prompt), at_examples(self.layout))
    return self._finish(outputs, prompt)

  def _finish(
    self, outputs: Float[Array, 'b t k'], prompt: Prompt
  ) -> Float[Array, 'b t *k']:
    """The predictions from the outputs at the last t examples."""
    if self.guess.is_residual:
      outputs += self.guess(prompt.features[:, -outputs.shape[1] :])
    return outputs if self.num_outputs > 1 else outputs[..., 0]

  def check_length(self, prompt_tokens: int, context_length: int) -> None:
    """Raises UserError for more tokens than `context_length` examples make."""
    if prompt_tokens > num_tokens(self.layout, context_length):
      raise UserError(
        f'the prompt has {prompt_tokens} tokens; the model has places for '
        f'{num_tokens(self.layout, context_length)}, those of {context_length} examples'
      )


def _redefines(kind: type, names: tuple[str, ...], than: str) -> bool:
  """Whether a class has one of the methods from a subclass of the owner of `than`."""

  def place(name: str) -> int:
    owners = (i for i, cls in enumerate(kind.__mro__) if vars(cls).get(name))
    return next(owners, len(kind.__mro__))

  return min(map(place, names)) < place(than) < len(kind.__mro__)
