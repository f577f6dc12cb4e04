"""Regression on the outputs of random two-layer networks."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Key

from zoo.core.distributions import Distribution, Gaussian
from zoo.core.errors import check_count, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor
from zoo.core.trees import Number, Tree
from zoo.estimators.baselines import NearestNeighbours, Zero
from zoo.estimators.linear import Ridge
from zoo.tasks.base import FunctionClass, dot, register_task


@register_task('relu_network')
@struct.dataclass(eq=False, repr=False)
class ReluNetwork(FunctionClass):
  """Prompts of `y_i = √(2/r) Σ_j a_j relu(w_j·x_i) + σ n_i` (Garg et al., 2208.01066).

  The weights `a_j ~ N(m, 1)` and `w_j ~ N(0, I)` of the r hidden features are fresh for
  each prompt, features are `~ N(0, I)`; m is `output_mean`. Predicting the prior mean
  `m √(r/π) |x|` has the risk `d (1 + m² (1 − 1/π))`, which is d for m = 0, and
  predicting 0 has `d m² r/π` more.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=100)
  hidden_features: int = struct.field(pytree_node=False, default=100)  # r
  noise_std: Number = 0.0  # σ ≥ 0
  output_mean: Number = 0.0  # m

  def check(self) -> None:
    super().check()
    check_count('hidden_features', self.hidden_features)
    check_number('output_mean', self.output_mean)

  def sample_function(
    self, key: Key[Array, '']
  ) -> tuple[Float[Array, 'r d'], Float[Array, ' r']]:
    hidden_key, output_key = jax.random.split(key)
    r = self.hidden_features
    hidden = jax.random.normal(hidden_key, (r, self.num_features))
    output = self.output_mean + jax.random.normal(output_key, (r,))
    return hidden, output * math.sqrt(2 / r)

  def evaluate(
    self,
    function: tuple[Float[Array, 'r d'], Float[Array, ' r']],
    x: Float[Array, 't d'],
  ) -> Float[Array, ' t']:
    hidden, output = function
    return dot(jax.nn.relu(dot(x[:, None], hidden[None])), output[None])

  def baselines(self) -> dict[str, Predictor]:
    return {
      'kernel': ArcCosineKernel(self.noise_std, self.output_mean, self.hidden_features),
      'ols': Ridge(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }


@struct.dataclass(eq=False, repr=False)
class ArcCosineKernel(Tree):
  """The posterior mean of a two-layer network as its width goes to infinity.

  The functions are then a Gaussian process with the arc-cosine kernel of order 1 (Cho &
  Saul 2009, eqs. 3 and 6), `k(x, x') = |x||x'| (sin t + (π − t) cos t)/π` with t the
  angle between x and x'. So this is the Bayes predictor in that limit, and at any width
  the predictor affine in the labels with the least risk. One Cholesky decomposition
  serves all lengths.

  With output weights of mean m the labels have the mean `m √(r/π) |x|`, since
  `E relu(w·x) = |x|/√(2π)`, and the covariance `(1 + m²) k(x, x') − m² |x||x'|/π`.
  """

  noise_std: Number = 0.0  # σ, in the units of the labels
  output_mean: Number = 0.0  # m
  # r; it matters only with a mean.
  hidden_features: int = struct.field(pytree_node=False, default=1)

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    return self.predictions(prompt)[:, -1]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """The prediction for each example from those before it, that for the query last."""
    x = prompt.features
    # Nothing is predicted from the query's label, so any number will do.
    return jax.vmap(self._predict_all)(x, jnp.pad(prompt.y, ((0, 0), (0, 1))))

  def distribution(self, prompt: Prompt) -> Distribution:
    """The distribution of each query's observed label, in the limit of the width."""
    return self.distributions(prompt)[:, -1]

  def distributions(self, prompt: Prompt) -> Gaussian:
    """The distribution for each example from those before it, `[b, t]`, query last."""
    x = prompt.features
    return jax.vmap(self._describe_all)(x, jnp.pad(prompt.y, ((0, 0), (0, 1))))

  def _predict_all(
    self, x: Float[Array, 't d'], y: Float[Array, ' t']
  ) -> Float[Array, ' t']:
    return self._describe_all(x, y).mean

  def _describe_all(self, x: Float[Array, 't d'], y: Float[Array, ' t']) -> Gaussian:
    # y = L z with independent z: row i of L gives label i from the z of earlier labels
    # and its own z, whose mean is 0.
    lower = jnp.linalg.cholesky(self._covariance(x))
    scale = self.output_mean * math.sqrt(self.hidden_features / math.pi)
    mean = scale * jnp.sqrt(jnp.sum(x * x, axis=1))
    independent = jax.scipy.linalg.solve_triangular(lower, y - mean, lower=True)
    return Gaussian(mean + jnp.tril(lower, -1) @ independent, jnp.diagonal(lower))

  def _covariance(self, x: Float[Array, 't d']) -> Float[Array, 't t']:
    """The covariance of the labels, with a little extra variance against rounding.

    After division by the norms, the entries and the steps of the decomposition have
    errors of a few ε, since the derivative of an entry by the cosine is at most 1; so
    the eigenvalues have errors of at most a few t ε. Without noise the least eigenvalue
    is about 0.04 for d = 20 and t = 101, far above 4 t ε = 5e-5; for d = 1 it is 0, and
    the decomposition would fail.
    """
    norms = jnp.sqrt(jnp.sum(x * x, axis=1))
    products = norms[:, None] * norms[None]
    cosines = x @ x.T / jnp.where(products > 0, products, 1)
    cosines = jnp.clip(cosines, -1, 1)
    angles = jnp.arccos(cosines)
    kernel = products * (jnp.sin(angles) + (jnp.pi - angles) * cosines) / jnp.pi
    square = self.output_mean**2
    kernel = (1 + square) * kernel - square / jnp.pi * products
    extra = 4 * len(x) * float(jnp.finfo(x.dtype).eps)
    share = (1 + square) * (1 + extra) - square / jnp.pi
    variances = share * norms**2 + self.noise_std**2
    # Features of 0 have the label 0, which carries no information.
    variances = jnp.where(variances > 0, variances, 1)
    return jnp.where(jnp.eye(len(x), dtype=bool), jnp.diag(variances), kernel)
