"""The recurrence of linear-state mixers alone: a learner that sees examples in turn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from zoo.core.errors import UserError, check_count, check_name, check_number
from zoo.core.exact_forms import Recurrence
from zoo.core.prompt import Prompt, checked_prompt
from zoo.core.registry import register_model
from zoo.core.taps import Tap
from zoo.mixers.mixer import widen
from zoo.mixers.recurrence import Inputs, chunkwise, delta_rule

# Each rule has two properties: whether the decays α are trained as well as the writes
# K, and whether a step erases what the weights predicted before it (H ≠ 0).
RULES = {
  'linear': (False, False),  # linear attention (arXiv 2006.16236): α = 1, H = 0
  'retention': (True, False),  # RetNet (arXiv 2307.08621): H = 0
  'delta': (False, True),  # the delta rule (arXiv 2102.11174): α = 1, H = K
  'gated_delta': (True, True),  # gated DeltaNet (arXiv 2412.06464): H = αK
}


@register_model('sequential')
class SequentialLearner(nnx.Module):
  """Weights that are updated at each example, with coefficients for each position.

    w_i = α_i w_{i−1} − H_i x_i x_iᵀ w_{i−1} + K_i x_i y_i
    ŷ_i = w_i·x                          the prediction after i examples

  This is the recurrence of `zoo.mixers` with the features as keys and queries and the
  labels as values. The coefficients are trained and do not depend on the prompt. The
  risk after each number of examples is known exactly (`zoo.theory.exact_curve`).

  The parameters are `write` `[c]`, which is K; for rules that decay `log_decay` `[c]`,
  which is log α and starts at 0; and with the guess 'linear' `start` `[d]`, the first
  weights, which start at 0.

  Args:
    num_features: Number d of features of an example, ≥ 1.
    context_length: Largest number C of examples in a prompt, ≥ 1.
    rule: What an example makes of the weights w: 'linear' w + K x y (linear attention,
      arXiv 2006.16236), 'retention' α w + K x y (arXiv 2307.08621), 'delta' (the
      default) w + K x (y − x·w) (arXiv 2102.11174), and 'gated_delta'
      α w + K x (y − α x·w) (arXiv 2412.06464). α and K are trained for each position.
    guess: The first weights: 'linear' (the default) trains them, 'zero' keeps them 0.
    init_scale: Standard deviation of the initial K, ≥ 0; 0.1 by default.
    rngs: Random keys of the initial weights.

  Raises:
    UserError: If an argument is out of its range.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> model = zoo.models.SequentialLearner(2, context_length=4, rngs=nnx.Rngs(0))
    >>> model.predictions(task.sample(jax.random.key(0), 3)).shape
    (3, 5)
  """

  guesses = 'zero', 'linear'  # The argument `guess` may have these values.

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
    """Predicts the label of each prompt's query.

    Args:
      prompt: Prompts `[b]` with d features.

    Returns:
      Predictions `[b]`.

    Raises:
      UserError: If the prompts have another number of features than the model, or more
        examples than `context_length`.
    """
    return self.predictions(prompt)[:, -1]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """Predicts each example from those before it, and the query from all.

    Args:
      prompt: Prompts `[b]` with d features and c examples.

    Returns:
      Predictions `[b, c + 1]`, that for the query last.

    Raises:
      UserError: If the prompts have another number of features than the model, or more
        examples than `context_length`.
    """
    prompt = checked_prompt(prompt, 'model', self.num_features, of_numbers=True)
    b, c, d = prompt.x.shape
    if c > self.context_length:
      raise UserError(
        f'the prompt has {c} examples; the model is for at most {self.context_length}'
      )
    given = jnp.promote_types(jnp.asarray(prompt.x).dtype, self.write[...].dtype)
    write, decay = widen(self.write[:c]), None
    if self.log_decay is not None:
      decay = _for_tokens(widen(self.log_decay[:c]), b)[..., None]
    features, x, y, start = widen((prompt.features, prompt.x, prompt.y, self._start()))
    # A token reads after it has written. The first token writes nothing; each later one
    # writes an example and reads with the features of the next.
    # The delta rule erases after the decay, so it gives H = αK.
    inputs = (delta_rule if self.erases else Inputs)(
      features[:, :, None],
      jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :, None],
      jnp.pad(y, ((0, 0), (1, 0)))[:, :, None, None],
      decay,
      _for_tokens(write, b),
    )
    state = jnp.broadcast_to(start[None, None, :, None], (b, 1, d, 1))
    state = state.astype(np.promote_types(given, 'float32'))
    read = self.read_tap(chunkwise(inputs, state)[0])
    return read[:, :, 0, 0].astype(given)

  def exact_form(self) -> Recurrence:
    """Returns the exact form from which `zoo.theory` computes the risk."""
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
  """Returns the coefficient of each token of each prompt; 0 for the first token."""
  return jnp.broadcast_to(
    jnp.pad(numbers, (1, 0))[None, :, None], (b, len(numbers) + 1, 1)
  )
