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
  """Prompts labelled by full binary decision trees (Garg et al., arXiv 2208.01066).

  Each inner node goes right where one coordinate is positive; this coordinate is drawn
  uniformly, with replacement. The 2^depth leaves have values `~ N(0, 1)`. The tree is
  fresh for each prompt, features are `~ N(0, I)`. Predicting 0 has the risk 1.
  """

  num_features: int = struct.field(pytree_node=False, default=20)
  context_length: int = struct.field(pytree_node=False, default=100)
  depth: int = struct.field(pytree_node=False, default=4)  # 1 to 20; 2^depth leaves

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
