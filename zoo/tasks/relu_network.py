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
  """Regression on a two-layer ReLU network, which is new in each prompt.

  For each prompt, the weights `w_j ~ N(0, I)` and `a_j ~ N(m, 1)` of r hidden units are
  drawn. The examples have features `x_i ~ N(0, I)` and labels
  `y_i = √(2/r) Σ_j a_j relu(w_j·x_i) + σ n_i` with `n_i ~ N(0, 1)`, and the query is
  drawn like the features of an example. Its target is the output of the network,
  without noise. The latents are the two layers `[r, d]` and `[r]`, the latter with the
  factor `√(2/r)`.

  The Bayes predictor is not known. The baseline `kernel` is its limit for r → ∞ (class
  `ArcCosineKernel`). Predicting the prior mean `m √(r/π) |x|` has the risk
  `d (1 + m² (1 − 1/π))`, which is d for m = 0. Predicting 0 has a risk that is larger
  by `d m² r/π`.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    hidden_features: Number of hidden units r ≥ 1.
    noise_std: Standard deviation σ ≥ 0 of the noise.
    output_mean: Mean m of the output weights, any number.

  Example:
    >>> task = zoo.create_task('relu_network', num_features=2, context_length=5)
    >>> prompt = task.sample(jax.random.key(0), 3)
    >>> prompt.x.shape, prompt.y.shape, prompt.y_query.shape
    ((3, 5, 2), (3, 5), (3,))

  References:
    Garg et al., arXiv 2208.01066.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=100)
  hidden_features: int = struct.field(pytree_node=False, default=100)
  noise_std: Number = 0.0
  output_mean: Number = 0.0

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

  The functions are then a Gaussian process with the arc-cosine kernel of order 1,
  `k(x, x') = |x||x'| (sin t + (π − t) cos t)/π` with t the angle between x and x'. This
  predictor is therefore the Bayes predictor in that limit. At any width it has the
  least risk of all predictors that are affine in the labels. One Cholesky decomposition
  gives the predictions after each number of examples.

  With output weights of mean m, the labels have the mean `m √(r/π) |x|`, since
  `E relu(w·x) = |x|/√(2π)`, and the covariance `(1 + m²) k(x, x') − m² |x||x'|/π`.

  Args:
    noise_std: Standard deviation σ of the noise, in the units of the labels.
    output_mean: Mean m of the output weights.
    hidden_features: Number of hidden units r. It matters only if m is not 0.

  References:
    Cho & Saul 2009, equations 3 and 6.
  """

  noise_std: Number = 0.0
  output_mean: Number = 0.0
  hidden_features: int = struct.field(pytree_node=False, default=1)

  def __call__(self, prompt: Prompt) -> Float[Array, ' b']:
    """Returns the prediction for each prompt's query."""
    return self.predictions(prompt)[:, -1]

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t']:
    """Predicts each example from those before it, and the query last."""
    x = prompt.features
    # No prediction depends on the query's label, so any number can stand in its place.
    return jax.vmap(self._predict_all)(x, jnp.pad(prompt.y, ((0, 0), (0, 1))))

  def distribution(self, prompt: Prompt) -> Distribution:
    """Returns the distribution of each query's observed label, for infinite width."""
    return self.distributions(prompt)[:, -1]

  def distributions(self, prompt: Prompt) -> Gaussian:
    """Returns the distribution of each label given those before it, `[b, t]`."""
    x = prompt.features
    return jax.vmap(self._describe_all)(x, jnp.pad(prompt.y, ((0, 0), (0, 1))))

  def _predict_all(
    self, x: Float[Array, 't d'], y: Float[Array, ' t']
  ) -> Float[Array, ' t']:
    return self._describe_all(x, y).mean

  def _describe_all(self, x: Float[Array, 't d'], y: Float[Array, ' t']) -> Gaussian:
    # The labels are y = L z with independent z. Row i of L gives label i from the z of
    # the earlier labels and from its own z, whose mean is 0.
    lower = jnp.linalg.cholesky(self._covariance(x))
    scale = self.output_mean * math.sqrt(self.hidden_features / math.pi)
    mean = scale * jnp.sqrt(jnp.sum(x * x, axis=1))
    independent = jax.scipy.linalg.solve_triangular(lower, y - mean, lower=True)
    return Gaussian(mean + jnp.tril(lower, -1) @ independent, jnp.diagonal(lower))

  def _covariance(self, x: Float[Array, 't d']) -> Float[Array, 't t']:
    """Returns the covariance of the labels, with some extra variance against rounding.

    After division by the norms, the entries and the steps of the decomposition have
    errors of a few ε (the rounding of a float), since the derivative of an entry by the
    cosine is at most 1. The eigenvalues therefore have errors of at most a few t ε.
    Without noise the least eigenvalue is about 0.04 for d = 20 and t = 101, far above 4
    t ε = 5e-5. For d = 1 it is 0, and the decomposition would fail.
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
    # An example whose features are all 0 has the label 0, which carries no information.
    variances = jnp.where(variances > 0, variances, 1)
    return jnp.where(jnp.eye(len(x), dtype=bool), jnp.diag(variances), kernel)
