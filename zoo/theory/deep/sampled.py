"""Low-variance estimates of the risk of deep linear attention with any weights.

The prediction depends on the context only through G, so G is sampled directly, and the
query is integrated out exactly (docs/theory.md, section 8).
"""

import functools
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
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.models.deep_lsa import DeepLSA
from zoo.models.linear_attention import LinearLayer
from zoo.tasks import LinearRegression
from zoo.tasks.base import symmetric_root
from zoo.tasks.linear_regression import require_covered
from zoo.theory.deep.deep_rule import deep_rule_risk, deep_spectrum, recursion
from zoo.theory.deep.gd_plus_plus import gd_plus_plus_risk
from zoo.theory.precision import double_precision, in_float64

# The steps, preconditions and readout of a network of the GD++ family.
Control = tuple[Float[Array, ' l'], Float[Array, ' l-1'], Float[Array, '']]
_CHUNK = 10_000  # contexts at a time: some 100 MB at d = 10


class SampledRisk(NamedTuple):
  """An estimate of a risk; the control variate adds a bias of order 1/n."""

  mean: float
  stderr: float  # standard error of the mean
  stderr_without_control: float  # for the same draws without the control variate
  # By how many standard errors the draws miss the known risk of the control variate.
  # Beyond ±5, that risk is dominated by contexts too rare to be drawn, and the model's
  # may be too: then neither the mean nor the errors can be trusted.
  control_score: float


class Contexts(NamedTuple):
  """Draws that make up contexts, all standard normal except for Bartlett's factor.

  With the task's parameters, x = Σ^½ features, y = ŵ·x + σ noise and ŵ = w* + Λ^½
  deviation; G is 1/C times the sum of v vᵀ over the m vectors v = `[x; y]`.
  """

  features: Float[Array, 'n m d']
  noise: Float[Array, 'n m']
  deviation: Float[Array, 'n d']


class _Law(NamedTuple):
  """The task's parameters: x = root z, y = (mean + spread ε)·x + noise n."""

  mean: Float[Array, ' d']
  root: Float[Array, 'd d']
  spread: Float[Array, 'd d']
  noise: Float[Array, '']


def sampled_risk(
  model: Predictor, task: Task, num_draws: int = 100_000, seed: int = 0
) -> SampledRisk:
  """Estimates the risk of deep linear attention from draws of G, in float64.

  G is drawn by Bartlett's decomposition, at a cost that does not depend on C. Each draw
  is used with both signs of ŵ − w* and the noise, and its risk is averaged over the
  query. The control variate is the network of the GD++ family nearest to the model,
  whose risk is known: for a model of that family only rounding errors remain; for a
  model far from it nothing is gained.

  Raises UserError for a task that exact theory does not cover, for other models, and
  for a guess that is not affine in the query.
  """
  task = require_covered(task)
  num_draws = check_count('num_draws', num_draws, minimum=2)
  with double_precision():
    model = in_float64(require_deep(model, task))
    control = steps, preconditions, readout = nearest_gd_plus_plus(model, task)
    known = gd_plus_plus_risk(_whitened(task), steps, preconditions, float(readout))
    graph, state = nnx.split(model)
    size = min(_CHUNK, num_draws)
    law = _law(task, jnp.dtype('float64'))
    pairs = [
      np.asarray(_losses_of(graph, size, task.context_length, state, law, control, key))
      for key in jax.random.split(jax.random.key(seed), math.ceil(num_draws / size))
    ]
    losses, controls = np.concatenate(pairs, axis=1)[:, :num_draws]
    slope = float(jax.jit(_slope)(jnp.asarray(losses), jnp.asarray(controls)))
  corrected = losses - slope * (controls - known)
  scale = 1 / math.sqrt(num_draws)
  spread = float(controls.std(ddof=1)) * scale
  return SampledRisk(
    mean=float(corrected.mean()),
    stderr=float(corrected.std(ddof=1)) * scale,
    stderr_without_control=float(losses.std(ddof=1)) * scale,
    control_score=float(controls.mean() - known) / spread if spread > 0 else 0.0,
  )


def low_variance_risk(
  model: DeepLSA, task: LinearRegression, contexts: Contexts
) -> Float[Array, '']:
  """`sampled_risk` from given draws, for training under jit and grad.

  The estimate and its gradient are unbiased: the coefficient of the control variate in
  each half of the draws is fitted to the other half, and not differentiated.
  """
  control = steps, preconditions, readout = nearest_gd_plus_plus(model, task)
  dtype = steps.dtype
  zero, zeros = jnp.zeros((), dtype), jnp.zeros(task.num_features, dtype)
  every = jnp.append(preconditions, zero)  # the last changes no prediction
  form = DeepRule(steps, every, readout, zeros, zeros, zero, zeros)
  known = deep_rule_risk(form, deep_spectrum(form, _whitened(task)))
  losses, controls = _losses(
    model, task.context_length, _law(task, dtype), control, contexts
  )
  half = len(losses) // 2
  first, second = slice(None, half), slice(half, None)
  total = jnp.sum(losses)
  for one, other in ((first, second), (second, first)):
    seen = jax.lax.stop_gradient((losses[other], controls[other]))
    slope = _slope(*seen) if seen[0].size else 0.0  # a batch may have one draw
    total -= slope * jnp.sum(controls[one] - known)
  return total / len(losses)


def _slope(
  losses: Float[Array, ' n'], controls: Float[Array, ' n']
) -> Float[Array, '']:
  """The least-squares slope of the losses over the controls; 0 for equal controls."""
  spread = controls - jnp.mean(controls)
  square = spread @ spread
  product = spread @ (losses - jnp.mean(losses))
  return jnp.where(square > 0, product / jnp.where(square > 0, square, 1), 0)


def nearest_gd_plus_plus(model: DeepLSA, task: LinearRegression) -> Control:
  """The network of the GD++ family with the traces of a model's blocks.

  The blocks are taken in the coordinates `[Σ^-½ x; y − w*·x]`. For a model of the
  family the result is the model itself.
  """
  graph, state = nnx.split(model)
  dtype = jax.tree.leaves(nnx.state(model, nnx.Param))[0].dtype
  root = _root(task.feature_covariance, model.num_features)
  numbers = task.prior_mean, root, np.linalg.pinv(root)
  return _nearest_of(graph, state, *(jnp.asarray(one, dtype) for one in numbers))


# In one program: otherwise each operation would be one.
@functools.partial(jax.jit, static_argnums=0)
def _nearest_of(
  graph: Any,
  state: Any,
  mean: Float[Array, ' d'],
  root: Float[Array, 'd d'],
  inverse_root: Float[Array, 'd d'],
) -> Control:
  model: Any = nnx.merge(graph, state)
  d, layers = model.num_features, [_matrices(layer) for layer in model.layers]
  dtype = mean.dtype
  if model.guess.is_residual:
    mean -= model.guess.weights[...][:, 0]
  # Tokens [x; y] are `change` times [Σ^-½ x; y − mean·x].
  change, inverse = jnp.eye(d + 1, dtype=dtype), jnp.eye(d + 1, dtype=dtype)
  change = change.at[:d, :d].set(root).at[d, :d].set(mean @ root)
  # The pseudoinverse of `change`.
  inverse = inverse.at[:d, :d].set(inverse_root)
  inverse = inverse.at[d, :d].set(-mean @ root @ inverse_root)
  steps, preconditions = [], []
  for i in range(model.num_layers):
    moves, scores = layers[i % len(layers)]
    moves, scores = inverse @ moves @ change, change.T @ scores @ change
    size = jnp.trace(scores[:, :d, :d], axis1=1, axis2=2) / d
    steps.append(size @ moves[:, d, d])
    features = jnp.trace(moves[:, :d, :d], axis1=1, axis2=2) / d
    preconditions.append(size @ features)
  readout = jnp.asarray(model.sign, dtype)
  if model.read_out is not None:
    readout = model.read_out[...][d, 0]
  return jnp.stack(steps), jnp.stack(preconditions)[:-1], readout


def _matrices(layer: Any) -> tuple[Float[Array, 'h e e'], Float[Array, 'h e e']]:
  """`P_h` and `A_h` of `z ← z + Σ_h P_h G A_h z`."""
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


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _losses_of(
  graph: Any,
  count: int,
  context_length: int,
  state: Any,
  law: _Law,
  control: Control,
  key: Key[Array, ''],
) -> Float[Array, '2 n']:
  contexts = sample_contexts(key, count, context_length, law.mean.size)
  model: Any = nnx.merge(graph, state)
  return jnp.stack(_losses(model, context_length, law, control, contexts))


def _losses(
  model: DeepLSA,
  context_length: int,
  law: _Law,
  control: Control,
  contexts: Contexts,
) -> tuple[Float[Array, ' n'], Float[Array, ' n']]:
  """The losses of the model and of the control variate for each draw."""
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
  # `κ χ_L(S) r`, the weights that the control variate learns, minus w*.
  steps, preconditions, readout = control
  identity = jnp.broadcast_to(jnp.eye(s_ndd.shape[-1])[None], s_ndd.shape)
  _, chi_ndd = recursion(steps, preconditions, s_ndd, identity, jnp.matmul)
  learned_nd = readout * jnp.einsum('nij,nj->ni', chi_ndd, r_nd)
  gap_nd = learned_nd - deviation_nd @ law.root
  return (loss(1.0) + loss(-1.0)) / 2, jnp.sum(gap_nd**2, axis=1)


def sample_contexts(
  key: Key[Array, ''], count: int, context_length: int, num_features: int
) -> Contexts:
  """Draws contexts whose sum `Σ v vᵀ`, v = [features; noise], is that of C examples.

  If C exceeds the number of entries of v, the vectors are the columns of Bartlett's
  factor (Muirhead, Aspects of Multivariate Statistical Theory, theorem 3.2.14).
  """
  key, other = jax.random.split(key)
  width = num_features + 1
  if context_length <= width:  # beyond it, chi variables have ≥ 2 degrees of freedom
    normal_nme = jax.random.normal(key, (count, context_length, width))
  else:
    key, chi_key = jax.random.split(key)
    degrees = context_length - np.arange(width)
    chi_nm = draws.chi(chi_key, degrees, count).T
    normal_nme = jax.random.normal(key, (count, width, width))
    # Row m is column m of the lower triangular factor.
    normal_nme = jnp.triu(normal_nme, 1) + chi_nm[..., None] * jnp.eye(width)[None]
  deviation_nd = jax.random.normal(other, (count, num_features))
  return Contexts(normal_nme[..., :-1], normal_nme[..., -1], deviation_nd)


def _law(task: LinearRegression, dtype: Any) -> _Law:
  d = task.num_features
  return _Law(
    mean=jnp.asarray(task.prior_mean, dtype),
    root=jnp.asarray(_root(task.feature_covariance, d), dtype),
    spread=jnp.asarray(_root(task.prior_covariance, d), dtype),
    noise=jnp.asarray(task.noise_std, dtype),
  )


def _affine(
  model: DeepLSA, x: Float[Array, 'n m d'], y: Float[Array, 'n m']
) -> tuple[Float[Array, ' n'], Float[Array, 'n d']]:
  """The constant and the weights of a prediction that is affine in the query."""
  n, _, d = x.shape

  def total(x_query: Float[Array, 'n d']) -> tuple[Array, Array]:
    prediction_n = model(Prompt(x=x, y=y, x_query=x_query, y_query=x_query[:, 0]))
    return jnp.sum(prediction_n), prediction_n

  weights_nd, constant_n = jax.grad(total, has_aux=True)(jnp.zeros((n, d)))
  return constant_n, weights_nd


def _root(covariance: Float[np.ndarray, 'd d'] | None, d: int) -> np.ndarray:
  return np.eye(d) if covariance is None else symmetric_root(covariance)


def _whitened(task: LinearRegression) -> LinearRegression:
  """The task with features `Σ^-½ x` and the prior mean 0."""
  d = task.num_features
  root = _root(task.prior_covariance, d) @ _root(task.feature_covariance, d)
  return LinearRegression(
    task.num_features,
    task.context_length,
    prior_covariance=root.T @ root,
    noise_std=task.noise_std,
  )


def require_deep(model: Predictor, task: LinearRegression) -> DeepLSA:
  """The model, if `sampled_risk` can estimate its risk; raises UserError otherwise."""
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
