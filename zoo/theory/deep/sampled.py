"""Low-variance estimates of the risk of deep linear attention with any weights.

The prediction depends on the context only through G. So G is sampled directly, and the
average over the query is computed from a formula (docs/theory_depth.md).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

from zoo.core import draws
from zoo.core.errors import UserError, check_count, check_same
from zoo.core.exact_forms import DeepRule
from zoo.core.learning_rule import AnyArray
from zoo.core.matrices import symmetric_root
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.estimators.linear_prior import second_moments
from zoo.models.deep_lsa import DeepLSA
from zoo.models.linear_attention import LinearLayer
from zoo.tasks import LinearRegression
from zoo.tasks.linear_regression import require_covered
from zoo.theory.deep.deep_rule import (
  Spectrum,
  deep_rule_risk,
  recursion,
  spectrum_of,
)
from zoo.theory.precision import double_precision, in_float64

_CHUNK = 10_000  # So many contexts are drawn at a time: some 100 MB at d = 10.


class SampledRisk(NamedTuple):
  """An estimate of a risk; the control variate adds a bias of order 1/n.

  `sampled_risk` returns it.

  Attributes:
    mean: The estimate.
    stderr: The standard error of the mean.
    stderr_without_control: The standard error that the same draws have without the
      control variate.
    control_score: By how many standard errors the draws miss the known risk of the
      control variate. Beyond ±5, that risk is dominated by contexts too rare to be
      drawn. The model's risk may be so, too: then neither the mean nor the errors can
      be trusted. A small score is no guarantee unless `stderr` is far below
      `stderr_without_control`: a model far from its control variate has rare contexts
      of its own.
  """

  mean: float
  stderr: float
  stderr_without_control: float
  control_score: float


class Contexts(NamedTuple):
  """Draws that make up contexts, all standard normal except for Bartlett's factor.

  With the task's parameters, `x = Σ^½ features`, `y = ŵ·x + σ noise` and
  `ŵ = w* + Λ^½ deviation`. G is 1/C times the sum of v vᵀ over the m vectors v = `[x;
  y]`.

  Attributes:
    features: The features of m vectors for each of n contexts, `[n, m, d]`.
    noise: The noise of their labels, `[n, m]`.
    deviation: The deviation of the weights from the prior mean, `[n, d]`.
  """

  features: Float[Array, 'n m d']
  noise: Float[Array, 'n m']
  deviation: Float[Array, 'n d']


class _Law(NamedTuple):
  """The task's parameters: x = root z, y = (mean + spread ε)·x + noise n.

  `inverse_root` is the pseudoinverse of `root`, and `whitened` is the spectrum of the
  task with features Σ^-½ x and the prior mean 0.
  """

  mean: Float[AnyArray, ' d']
  root: Float[AnyArray, 'd d']
  inverse_root: Float[AnyArray, 'd d']
  spread: Float[AnyArray, 'd d']
  noise: Float[AnyArray, ''] | float
  whitened: Spectrum


def sampled_risk(
  model: Predictor, task: Task, num_draws: int = 100_000, seed: int = 0
) -> SampledRisk:
  """Estimates the risk of deep linear attention from draws of G, in float64.

  G is drawn by Bartlett's decomposition, at a cost that does not depend on C. Each draw
  is used with both signs of ŵ − w* and the noise, and its risk is averaged over the
  query. The control variate is the network of the GD++ family nearest to the model,
  whose risk is known. For a model of that family only rounding errors remain; for a
  model far from it nothing is gained.

  Args:
    model: A `DeepLSA`, whose guess is affine in the query.
    task: A `linear_regression`.
    num_draws: The number of draws, ≥ 100. With few draws the fitted factor of the
      control variate makes errors look too small.
    seed: The seed of the draws (≥ 0).

  Returns:
    The estimate, and its standard errors.

  Raises:
    UserError: If the theory does not cover the task, if the model is of another class,
      has another number of features or outputs, or a guess that is not affine in the
      query, or if `num_draws` or `seed` is out of its range.

  Example:
    >>> model = zoo.create_model('deep_lsa', num_features=2, rngs=nnx.Rngs(0))
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=4)
    >>> risk = zoo.theory.deep.sampled_risk(model, task, num_draws=1000)
    >>> print(f'{risk.stderr:.1g}, without a control {risk.stderr_without_control:.1g}')
    0.0003, without a control 0.06

  References:
    docs/theory_depth.md.
  """
  task = require_covered(task)
  num_draws = check_count('num_draws', num_draws, minimum=100)
  seed = check_count('seed', seed, minimum=0)
  size = min(_CHUNK, num_draws)
  with double_precision():
    deep = in_float64(require_deep(model, task))
    law = _law(task, deep)
    keys = jax.random.split(jax.random.key(seed), math.ceil(num_draws / size))
    parts = [_drawn_losses(deep, size, task.context_length, law, key) for key in keys]
    *pairs, known = (np.array(part) for part in zip(*parts, strict=True))
    losses, controls = (np.ravel(part)[:num_draws] for part in pairs)
    slope = float(jax.jit(_slope)(jnp.asarray(losses), jnp.asarray(controls)))
    known = float(known[0])
  corrected = losses - slope * (controls - known)
  scale = 1 / math.sqrt(num_draws)
  spread = float(controls.std(ddof=1)) * scale
  return SampledRisk(
    mean=float(corrected.mean()),
    stderr=float(corrected.std(ddof=2)) * scale,  # The slope is fitted, too.
    stderr_without_control=float(losses.std(ddof=1)) * scale,
    control_score=float(controls.mean() - known) / spread if spread > 0 else 0.0,
  )


def _slope(
  losses: Float[Array, ' n'], controls: Float[Array, ' n']
) -> Float[Array, '']:
  """Returns the least-squares slope of losses over controls; 0 for equal controls."""
  spread = controls - jnp.mean(controls)
  square = spread @ spread
  product = spread @ (losses - jnp.mean(losses))
  return jnp.where(square > 0, product / jnp.where(square > 0, square, 1), 0)


def _nearest(model: DeepLSA, law: _Law) -> DeepRule:
  """Returns the network of the GD++ family with the traces of a model's blocks.

  The blocks are taken in the coordinates `[Σ^-½ x; y − w*·x]`. For a model of the
  family the result is the model itself.
  """
  d, mean = model.num_features, law.mean
  if model.guess.is_residual:
    mean -= model.guess.weights[...][:, 0]
  # Tokens [x; y] are `change` times [Σ^-½ x; y − mean·x].
  identity = jnp.eye(d + 1, dtype=mean.dtype)
  change = identity.at[:d, :d].set(law.root).at[d, :d].set(mean @ law.root)
  inverse = identity.at[:d, :d].set(law.inverse_root)  # the pseudoinverse of `change`
  inverse = inverse.at[d, :d].set(-mean @ law.root @ law.inverse_root)
  steps, preconditions = [], []
  for i in range(model.num_layers):
    moves, scores = _matrices(model.layers[i % len(model.layers)])
    moves, scores = inverse @ moves @ change, change.T @ scores @ change
    size = jnp.trace(scores[:, :d, :d], axis1=1, axis2=2) / d
    steps.append(size @ moves[:, d, d])
    features = jnp.trace(moves[:, :d, :d], axis1=1, axis2=2) / d
    preconditions.append(size @ features)
  zeros = 0 * mean
  return DeepRule(
    steps=jnp.stack(steps),
    # The last matrix changes no prediction.
    preconditions=jnp.stack(preconditions).at[-1].set(0),
    readout=zeros[0] + (model.sign if model.read_out is None else model.read_out[d, 0]),
    feature_readout=zeros,
    start=zeros,
    offset=zeros[0],
    residual=zeros,
  )


def _matrices(layer: Any) -> tuple[Float[Array, 'h e e'], Float[Array, 'h e e']]:
  """Returns `P_h` and `A_h` of `z ← z + Σ_h P_h G A_h z`."""
  if isinstance(layer, LinearLayer):
    return (
      layer.w_p[...] @ layer.w_v[...],
      jnp.swapaxes(layer.w_k[...], 1, 2) @ layer.w_q[...],
    )
  a = layer.matrices(layer.a)
  h, d, _ = a.shape
  moves = jnp.zeros((h, d + 1, d + 1), a.dtype).at[:, d, d].set(1)
  if layer.b is not None:
    moves = moves.at[:, :d, :d].set(layer.matrices(layer.b))
  return moves, -jnp.pad(a, ((0, 0), (0, 1), (0, 1)))


@nnx.jit(static_argnums=(1, 2))
def _drawn_losses(
  model: DeepLSA, count: int, context_length: int, law: _Law, key: Key[Array, '']
) -> tuple[Float[Array, ' n'], Float[Array, ' n'], Float[Array, '']]:
  contexts = sample_contexts(key, count, context_length, law.mean.size)
  return _losses(model, context_length, law, contexts)


def _losses(
  model: DeepLSA, context_length: int, law: _Law, contexts: Contexts
) -> tuple[Float[Array, ' n'], Float[Array, ' n'], Float[Array, '']]:
  """Returns the losses of the model and of the control variate, and its known risk."""
  z_nmd, noise_nm, normal_nd = contexts
  deviation_nd = normal_nd @ law.spread
  x_nmd = z_nmd @ law.root
  odd_nm = jnp.einsum('nmd,nd->nm', x_nmd, deviation_nd) + law.noise * noise_nm
  # The model divides by the number of vectors, m, and G by the number of examples, C.
  scale = math.sqrt(x_nmd.shape[1] / context_length)

  def loss(sign: float) -> Float[Array, ' n']:
    y_nm = x_nmd @ law.mean + sign * odd_nm
    constant_n, weights_nd = _affine(model, scale * x_nmd, scale * y_nm)
    gap_nd = (weights_nd - law.mean[None] - sign * deviation_nd) @ law.root
    return constant_n**2 + jnp.sum(gap_nd**2, axis=1)

  # The control variate is odd in the deviation and the noise, so its loss is the same
  # for both signs.
  s_ndd = jnp.einsum('nmi,nmj->nij', z_nmd, z_nmd) / context_length
  r_nd = jnp.einsum('nmi,nm->ni', z_nmd, odd_nm) / context_length
  # The control variate learns the weights w* + ρ χ_L(S) r.
  control = _nearest(model, law)
  identity = jnp.broadcast_to(jnp.eye(s_ndd.shape[-1])[None], s_ndd.shape)
  steps, preconditions = control.steps, control.preconditions
  _, chi_ndd = recursion(steps, preconditions, s_ndd, identity, jnp.matmul)
  learned_nd = control.readout * jnp.einsum('nij,nj->ni', chi_ndd, r_nd)
  gap_nd = learned_nd - deviation_nd @ law.root
  known = deep_rule_risk(control, law.whitened)
  return (loss(1.0) + loss(-1.0)) / 2, jnp.sum(gap_nd**2, axis=1), known


def sample_contexts(
  key: Key[Array, ''], count: int, context_length: int, num_features: int
) -> Contexts:
  """Draws contexts whose sum `Σ v vᵀ`, v = [features; noise], is that of C examples.

  If C exceeds the number of entries of v, the vectors are the columns of Bartlett's
  factor (Muirhead, Aspects of Multivariate Statistical Theory, theorem 3.2.14).

  Args:
    key: The random key.
    count: The number of contexts n.
    context_length: C.
    num_features: d.

  Returns:
    The contexts, each of m = min(C, d + 1) vectors.

  Example:
    >>> key = jax.random.key(0)
    >>> zoo.theory.deep.sample_contexts(key, 5, 2, num_features=2).features.shape
    (5, 2, 2)
  """
  key, other = jax.random.split(key)
  width = num_features + 1
  if context_length <= width:  # Beyond this, chi variables have ≥ 2 degrees of freedom.
    normal_nme = jax.random.normal(key, (count, context_length, width))
  else:
    key, chi_key = jax.random.split(key)
    degrees = context_length - np.arange(width)
    chi_nm = draws.chi(chi_key, degrees, count).T
    normal_nme = jax.random.normal(key, (count, width, width))
    # Row m of the array is column m of the lower triangular factor.
    normal_nme = jnp.triu(normal_nme, 1) + chi_nm[..., None] * jnp.eye(width)[None]
  deviation_nd = jax.random.normal(other, (count, num_features))
  return Contexts(normal_nme[..., :-1], normal_nme[..., -1], deviation_nd)


def _law(task: LinearRegression, model: DeepLSA) -> _Law:
  """Returns the law of a task, in the precision of a model."""
  prior, features = second_moments(task)
  spread, root = symmetric_root(prior), symmetric_root(features)
  whitened = LinearRegression(
    task.num_features,
    task.context_length,
    prior_covariance=(spread @ root).T @ (spread @ root),
    noise_std=task.noise_std,
  )
  dtype = jax.tree.leaves(nnx.state(model, nnx.Param))[0].dtype
  law = _Law(
    mean=task.mean_weights(),
    root=root,
    inverse_root=np.linalg.pinv(root),
    spread=spread,
    noise=task.noise_std,
    whitened=spectrum_of(whitened, model.num_layers),
  )
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), law)


def _affine(
  model: DeepLSA, x: Float[Array, 'n m d'], y: Float[Array, 'n m']
) -> tuple[Float[Array, ' n'], Float[Array, 'n d']]:
  """Returns the constant and weights of a prediction that is affine in the query."""
  n, _, d = x.shape

  def total(x_query: Float[Array, 'n d']) -> tuple[Array, Array]:
    prediction_n = model(Prompt(x=x, y=y, x_query=x_query, y_query=x_query[:, 0]))
    return jnp.sum(prediction_n), prediction_n

  weights_nd, constant_n = jax.grad(total, has_aux=True)(jnp.zeros((n, d)))
  return constant_n, weights_nd


def require_deep(model: Predictor, task: LinearRegression) -> DeepLSA:
  """Checks that `sampled_risk` can estimate the risk of a model.

  Args:
    model: The model.
    task: A `linear_regression`.

  Returns:
    The model.

  Raises:
    UserError: If the model is not a `DeepLSA`, has another number of features or
      outputs than the task, or a guess that is not affine in the query.

  Example:
    >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
    >>> model = zoo.theory.constructions.deep_gradient_descent([0.0, 0.0], [0.5])
    >>> zoo.theory.deep.require_deep(model, task) is model
    True
  """
  # A subclass may predict differently.
  if type(model) is not DeepLSA:
    raise UserError(
      f'the model is of type {type(model).__name__}; it must be a DeepLSA, whose '
      'prediction depends on the context through its second moment'
    )
  check_same('features', model.num_features, task.num_features)
  check_same('outputs', model.num_outputs, task.num_outputs)
  if not model.guess.is_affine:
    raise UserError(
      f'the guess of the model is {model.guess.kind!r}; it must be one that is affine '
      'in the query'
    )
  return model
