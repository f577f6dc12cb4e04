"""Regression on random decision trees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from zoo.core.errors import check_count
from zoo.core.protocols import Predictor
from zoo.estimators.baselines import NearestNeighbours, Zero
from zoo.estimators.trees import Boosting, GreedyTree
from zoo.tasks.base import FunctionClass, register_task


@register_task('decision_tree')
@struct.dataclass(eq=False, repr=False)
class DecisionTree(FunctionClass):
  """Regression on a full binary decision tree, which is new in each prompt.

  For each prompt, each inner node of a tree gets a coordinate, drawn uniformly with
  replacement, and each of its `2^depth` leaves a value `~ N(0, 1)`. An example has
  features `x_i ~ N(0, I)`. It starts at the root, and goes right where the coordinate
  of the node is positive, else left. Its label is the value of the leaf that it
  reaches. There is no noise, so the target of the query is its label. The latents are
  the coordinates and the values.

  The Bayes predictor is not known. Predicting 0 has the risk 1.

  Args:
    num_features: Number of features d ≥ 1.
    context_length: Number of examples C ≥ 1.
    depth: Number of decisions from the root to a leaf, from 1 to 20.

  Example:
    >>> task = zoo.create_task('decision_tree', num_features=2, depth=2)
    >>> prompt = task.sample(jax.random.key(0), 3, latents=True)
    >>> prompt.x.shape, prompt.y.shape, [array.shape for array in prompt.latents]
    ((3, 100, 2), (3, 100), [(3, 3), (3, 4)])

  References:
    Garg et al., arXiv 2208.01066.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=100)
  depth: int = struct.field(pytree_node=False, default=4)

  def check(self) -> None:
    super().check()
    check_count('depth', self.depth, maximum=20)

  def sample_function(
    self, key: Key[Array, '']
  ) -> tuple[Int[Array, ' nodes'], Float[Array, ' leaves']]:
    nodes_key, leaves_key = jax.random.split(key)
    num_leaves = 2**self.depth
    coordinates = jax.random.randint(nodes_key, (num_leaves - 1,), 0, self.num_features)
    return coordinates, jax.random.normal(leaves_key, (num_leaves,))

  def evaluate(
    self,
    function: tuple[Int[Array, ' nodes'], Float[Array, ' leaves']],
    x: Float[Array, 't d'],
  ) -> Float[Array, ' t']:
    coordinates, values = function
    # The children of node i are 2 i + 1 and 2 i + 2, and the leaves come last.
    node = jnp.zeros(len(x), coordinates.dtype)
    for _ in range(self.depth):
      feature = jnp.take_along_axis(x, coordinates[node][:, None], axis=1)[:, 0]
      node = 2 * node + 1 + (feature > 0).astype(node.dtype)
    return values[node - len(coordinates)]

  def baselines(self) -> dict[str, Predictor]:
    return {
      'boosting': Boosting(),
      'greedy_tree': GreedyTree(),
      'nearest_neighbours': NearestNeighbours(),
      'zero': Zero(),
    }
