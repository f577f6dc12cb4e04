"""The recurrence of linear-state mixers alone: a learner that sees examples in turn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.exact_forms import Recurrence
from zoo.core.prompt import Prompt, check_prompt
from zoo.core.registry import register_model
from zoo.core.taps import Tap
from zoo.mixers.recurrence import Inputs, chunkwise, delta_rule

# For each rule: whether the decays α are trained as well as the writes K, and whether a
# step erases what the weights predicted before it (H ≠ 0).
RULES = {
  'linear': (False, False),  # linear attention (arXiv 2006.16236): α = 1, H = 0
  'retention': (True, False),  # RetNet (arXiv 2307.08621): H = 0
  'delta': (False, True),  # the delta rule (arXiv 2102.11174): α = 1, H = K
  'gated_delta': (True, True),  # gated DeltaNet (arXiv 2412.06464): H = αK
}


@register_model('sequential')
class SequentialLearner(nnx.Module):
  """Weights updated at each example, by coefficients that depend on its position.

  w_i = α_i w_{i−1} − H_i x_i x_iᵀ w_{i−1} + K_i x_i y_i, and the prediction is w_i·x

  This is the recurrence of `zoo.mixers` with the features as keys and queries, the
  labels as values, and coefficients that do not depend on the prompt. The rule is one
  of RULES. The risk after each number of examples is known exactly
  (`zoo.theory.exact_curve`).

  Parameters: `write [c]`, K; for rules that decay `log_decay [c]`, log α, from 0; with
  the guess `linear` the first weights `start [d]`, from 0.
  """

  guesses = 'zero', 'linear'  # what the argument `guess` may be

  def __init__(
    self,
    num_features: int,
    context_length: int,
    rule: str = 'delta',
    guess: str = 'linear',
    init_scale: float = 0.1,
    *,
    rngs: nnx.Rngs,
  ):
    """The writes start from N(0, init_scale²).

    Args:
      num_features: d ≥ 1.
      context_length: the most examples of a prompt, C ≥ 1.
      rule: how a step changes the weights, one of RULES.
      guess: the first weights, `zero` or `linear`: 0, or trained from 0.
      init_scale: standard deviation of the initial coefficients, ≥ 0.
      rngs: the keys of the initial weights.

    Raises UserError for an argument that is out of its range.
    """
    check_name('rule', rule, RULES)
    check_name('guess', guess, self.guesses)
    check_number('init_scale', init_scale, minimum=0.0, maximum=1e30)
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.rule = rule
    self.decays, self.erases = RULES[rule]
    normal = jax.random.normal(rngs.params(), (context_length,))
    self.write = nnx.Param(init_scale * normal)
    self.log_decay = nnx.Param(jnp.zeros(context_length)) if self.decays else None
    linear = guess == 'linear'
    self.start = nnx.Param(jnp.zeros(num_features)) if linear else None
    self.read_tap = Tap(axes='b n h v', kind='read')

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction for each prompt's query; UserError as in `predictions`."""
    return self.predictions(prompt)[:, -1]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """The prediction for each example from those before it, that for the query last.

    Raises UserError for the wrong number of features, or for too many examples.
    """
    check_prompt(prompt, 'model', self.num_features)
    b, c, d = prompt.x.shape
    if c > self.context_length:
      raise UserError(
        f'the prompt has {c} examples; the model is for at most {self.context_length}'
      )
    write, decay = self.write[:c], None
    if self.log_decay is not None:
      decay = _for_tokens(self.log_decay[:c], b)[..., None]
    # A token reads after it has written. The first token writes nothing; each later one
    # writes an example and reads with the features of the next.
    # The delta rule erases after the decay, so it gives H = αK.
    inputs = (delta_rule if self.erases else Inputs)(
      prompt.features[:, :, None],
      jnp.pad(prompt.x, ((0, 0), (1, 0), (0, 0)))[:, :, None],
      jnp.pad(prompt.y, ((0, 0), (1, 0)))[:, :, None, None],
      decay,
      _for_tokens(write, b),
    )
    state = jnp.broadcast_to(self._start()[None, None, :, None], (b, 1, d, 1))
    return self.read_tap(chunkwise(inputs, state)[0])[:, :, 0, 0]

  def exact_form(self) -> Recurrence:
    """The exact form from which `zoo.theory` computes the risk."""
    write = self.write[...]
    decay = jnp.ones_like(write)
    if self.log_decay is not None:
      decay = jnp.exp(self.log_decay[...])
    erase = decay * write if self.erases else jnp.zeros_like(write)
    return Recurrence(self._start(), decay, erase, write)

  def _start(self) -> Float[Array, ' d']:
    if self.start is not None:
      return self.start[...]
    return jnp.zeros(self.num_features, self.write.dtype)


def _for_tokens(numbers: Float[Array, ' c'], b: int) -> Float[Array, 'b t 1']:
  """The coefficient of each token of each prompt; 0 for the first token."""
  return jnp.broadcast_to(
    jnp.pad(numbers, (1, 0))[None, :, None], (b, len(numbers) + 1, 1)
  )
