"""Regression on random decision trees."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from zoo.errors import UserError, check_count
from zoo.protocols import Predictor
from zoo.registry import tasks
from zoo.tasks.base import FunctionClass

_LARGEST_DEPTH = 20  # a million leaves per prompt


@tasks.register('decision_tree')
class DecisionTree(FunctionClass):
  """Prompts labelled by full binary decision trees (Garg et al., arXiv 2208.01066).

  Each inner node goes right where one coordinate is positive; this coordinate is drawn
  uniformly, with replacement. The 2^depth leaves have values `~ N(0, 1)`. The tree is
  fresh for each prompt, features are `~ N(0, I)`. Predicting 0 has the risk 1.
  """

  def __init__(self, num_features: int = 20, context_length: int = 100, depth: int = 4):
    """Raises UserError naming the argument that is out of its range."""
    self.num_features = check_count('num_features', num_features)
    self.context_length = check_count('context_length', context_length)
    self.depth = check_count('depth', depth)
    if self.depth > _LARGEST_DEPTH:
      raise UserError(
        f'depth is {depth}; it must be at most {_LARGEST_DEPTH}, since a tree has '
        '2^depth leaves'
      )

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
    # Imported here since the estimators import the tasks.
    from zoo.estimators import regression, trees

    return {
      'boosting': trees.Boosting(),
      'greedy_tree': trees.GreedyTree(),
      'nearest_neighbours': regression.NearestNeighbours(),
      'zero': regression.Zero(),
    }
