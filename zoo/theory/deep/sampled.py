"""The risk of deep linear attention of any weights, from few random numbers.

A context enters its prediction only through the first moment G, so G is drawn, and the
query is integrated exactly (docs/theory.md, section 8).
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

from zoo import draws
from zoo.errors import UserError, check_count
from zoo.models.deep_lsa import DeepLSA
from zoo.models.linear_attention import LinearAttention
from zoo.prompt import Prompt
from zoo.protocols import Predictor, Task
from zoo.tasks import LinearRegression
from zoo.tasks.base import symmetric_root
from zoo.tasks.coverage import require_covered
from zoo.theory.deep.gd_plus_plus import GDPlusPlus, gd_plus_plus_risk
from zoo.theory.exact import double_precision, in_float64

_CHUNK = 10_000  # contexts at a time: some 100 MB at d = 10


class SampledRisk(NamedTuple):
  """An unbiased estimate of a risk, up to terms of order 1/n of the control variate."""

  mean: float
  stderr: float  # standard error of the mean
  stderr_without_control: float  # that of the same draws without the control variate


class _Law(NamedTuple):
  """What contexts are made of: x = root z, y = (mean + spread ε)·x + noise n."""

  mean: Float[Array, '1 d']
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
  whose risk is known: if the model is of that family the error is that of rounding;
  far away it gains nothing.

  Raises UserError for a task that exact theory does not cover, a model of another kind,
  and one whose prediction is not affine in the query.
  """
  task = require_covered(task)
  num_draws = check_count('num_draws', num_draws, minimum=2)
  with double_precision():
    model = in_float64(_checked(model, task))
    nearest = nearest_gd_plus_plus(model, task)
    whitened = _whitened(task)
    known = gd_plus_plus_risk(whitened, *nearest)
    graph, state = nnx.split(model)
    size, d = min(_CHUNK, num_draws), task.num_features
    control = tuple(map(jnp.asarray, nearest))
    law = _Law(
      mean=jnp.asarray(task.prior_mean)[None],
      root=jnp.asarray(_root(task.feature_covariance, d)),
      spread=jnp.asarray(_root(task.prior_covariance, d)),
      noise=jnp.asarray(task.noise_std),
    )
    pairs = [
      np.asarray(_losses(graph, size, task.context_length, state, law, control, key))
      for key in jax.random.split(jax.random.key(seed), math.ceil(num_draws / size))
    ]
  losses, controls = np.concatenate(pairs, axis=1)[:, :num_draws]
  spread = controls - controls.mean()
  square = float(spread @ spread)
  slope = float(spread @ (losses - losses.mean())) / square if square > 0 else 0.0
  corrected = losses - slope * (controls - known)
  scale = 1 / math.sqrt(num_draws)
  return SampledRisk(
    mean=float(corrected.mean()),
    stderr=float(corrected.std(ddof=1)) * scale,
    stderr_without_control=float(losses.std(ddof=1)) * scale,
  )


def nearest_gd_plus_plus(model: DeepLSA, task: LinearRegression) -> GDPlusPlus:
  """The network of the GD++ family with the traces of a model's blocks.

  The blocks are those in coordinates `[Σ^-½ x; y − w*·x]`. It is the model itself where
  this is of the family.
  """
  d, mean = model.num_features, task.prior_mean
  if model.guess.kind == 'residual':
    mean = mean - np.asarray(model.guess.weights[...], float)[:, 0]
  root = _root(task.feature_covariance, d)
  # Tokens [x; y] are `change` times [Σ^-½ x; y − mean·x].
  change = np.eye(d + 1)
  change[:d, :d], change[d, :d] = root, mean @ root
  inverse = np.linalg.pinv(change)
  steps, preconditions = [], []
  for i in range(model.num_layers):
    moves, scores = _matrices(model.layers[i % len(model.layers)])
    moves, scores = inverse @ moves @ change, change.T @ scores @ change
    size = np.trace(scores[:, :d, :d], axis1=1, axis2=2) / d
    steps.append(float(size @ moves[:, d, d]))
    features = np.trace(moves[:, :d, :d], axis1=1, axis2=2) / d
    preconditions.append(float(size @ features))
  readout = model.sign
  if hasattr(model, 'read_out'):
    readout = np.asarray(model.read_out[...], float)[d, 0]
  return GDPlusPlus(np.array(steps), np.array(preconditions[:-1]), float(readout))


def _matrices(
  layer: Any,
) -> tuple[Float[np.ndarray, 'h e e'], Float[np.ndarray, '...']]:
  """`P_h` and `A_h` of `z ← z + Σ_h P_h G A_h z`."""
  if isinstance(layer, LinearAttention):
    w_p, w_v, w_k, w_q = (
      np.asarray(one[...], float)
      for one in (layer.w_p, layer.w_v, layer.w_k, layer.w_q)
    )
    return w_p @ w_v, w_k.swapaxes(1, 2) @ w_q
  a = np.asarray(layer.a[...], float)
  d = a.shape[-1]
  moves = np.zeros((len(a), d + 1, d + 1))
  moves[:, d, d] = 1
  if hasattr(layer, 'b'):
    moves[:, :d, :d] = np.asarray(layer.b[...], float)
  return moves, -np.pad(a, ((0, 0), (0, 1), (0, 1)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _losses(
  graph: Any,
  count: int,
  context_length: int,
  state: Any,
  law: _Law,
  control: tuple[Array, Array, Array],
  key: Key[Array, ''],
) -> Float[Array, '2 n']:
  """The losses of the model and of the control variate for each draw."""
  d = law.mean.size
  key, other = jax.random.split(key)
  normal_nme = _contexts(key, count, context_length, d + 1)
  z_nmd, noise_nm = normal_nme[..., :d], normal_nme[..., d]
  deviation_nd = jax.random.normal(other, (count, d)) @ law.spread
  x_nmd = z_nmd @ law.root
  odd_nm = jnp.einsum('nmd,nd->nm', x_nmd, deviation_nd) + law.noise * noise_nm
  # The model divides by the number of tokens, and G by that of examples.
  scale = math.sqrt(x_nmd.shape[1] / context_length)
  model: Any = nnx.merge(graph, state)

  def loss(sign: float) -> Float[Array, ' n']:
    y_nm = x_nmd @ law.mean[0] + sign * odd_nm
    constant_n, weights_nd = _affine(model, scale * x_nmd, scale * y_nm)
    gap_nd = (weights_nd - law.mean - sign * deviation_nd) @ law.root
    return constant_n**2 + jnp.sum(gap_nd**2, axis=1)

  # The control variate is odd in both: its loss is the same for either sign.
  s_ndd = jnp.einsum('nmi,nmj->nij', z_nmd, z_nmd) / context_length
  r_nd = jnp.einsum('nmi,nm->ni', z_nmd, odd_nm) / context_length
  gap_nd = _learned(control, s_ndd, r_nd) - deviation_nd @ law.root
  return jnp.stack([(loss(1.0) + loss(-1.0)) / 2, jnp.sum(gap_nd**2, axis=1)])


def _contexts(
  key: Key[Array, ''], count: int, context_length: int, width: int
) -> Float[Array, 'n m e']:
  """Vectors whose sum of squares `Σ v vᵀ` has the law of C standard normal ones.

  Beyond as many as their entries they are the columns of Bartlett's factor (Muirhead,
  Aspects of Multivariate Statistical Theory, theorem 3.2.14).
  """
  if context_length <= width:  # and the degrees of chi variables are ≥ 2 beyond it
    return jax.random.normal(key, (count, context_length, width))
  key, other = jax.random.split(key)
  degrees = context_length - np.arange(width)
  chi_nm = draws.chi(other, degrees, count).T
  normal_nme = jax.random.normal(key, (count, width, width))
  # Row m is the column m of the lower triangular factor.
  return jnp.triu(normal_nme, 1) + chi_nm[..., None] * jnp.eye(width)[None]


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


def _learned(
  control: tuple[Array, Array, Array],
  s: Float[Array, 'n d d'],
  r: Float[Array, 'n d'],
) -> Float[Array, 'n d']:
  """`κ χ_L(S) r`, the weights that a network of the family learns beside w*."""
  steps, preconditions, readout = control
  identity = jnp.eye(s.shape[-1])[None]
  phi, chi = jnp.broadcast_to(identity, s.shape), jnp.zeros_like(s)
  for layer in range(steps.size):
    square = phi @ phi
    chi = chi + steps[layer] * square @ (identity + s @ chi)
    if layer < preconditions.size:
      phi = phi + preconditions[layer] * s @ square @ phi
  return readout * jnp.einsum('nij,nj->ni', chi, r)


def _root(covariance: Float[np.ndarray, 'd d'] | None, d: int) -> np.ndarray:
  return np.eye(d) if covariance is None else symmetric_root(covariance)


def _whitened(task: LinearRegression) -> LinearRegression:
  """The task of `Σ^-½ x`, without a prior mean."""
  d = task.num_features
  root = _root(task.prior_covariance, d) @ _root(task.feature_covariance, d)
  return LinearRegression(
    task.num_features,
    task.context_length,
    prior_covariance=root.T @ root,
    noise_std=task.noise_std,
  )


def _checked(model: Predictor, task: LinearRegression) -> DeepLSA:
  # A subclass may predict something else.
  if type(model) is not DeepLSA:
    raise UserError(
      f'the model is of type {type(model).__name__}; it must be a DeepLSA, whose '
      'prediction depends on the context through its second moment'
    )
  if model.num_features != task.num_features:
    raise UserError(
      f'the model has {model.num_features} features; the task has {task.num_features}'
    )
  if model.num_outputs != 1:
    raise UserError(
      f'the model has {model.num_outputs} outputs; it must have one, as the task has'
    )
  if model.guess.kind == 'network':
    raise UserError(
      "the guess of the model is 'network'; it must be one that is affine in the query"
    )
  return model
