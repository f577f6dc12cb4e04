"""A task of a user's own that samples as another one does."""

from typing import Any

from flax import struct

from zoo.tasks import BaseTask


@struct.dataclass(eq=False, repr=False)
class Wrapped(BaseTask):
  """Another task under a class of its own, of which theory knows nothing.

  Its baselines are those of the other task but for `bayes`, or those that are given:
  pairs of a name and a predictor.
  """

  task: Any
  chosen: Any = struct.field(pytree_node=False, default=None)

  @property
  def num_features(self) -> int:  # pyright: ignore
    return self.task.num_features

  @property
  def context_length(self) -> int:  # pyright: ignore
    return self.task.context_length

  @property
  def num_outputs(self) -> int:  # pyright: ignore
    return self.task.num_outputs

  def sample_one(self, key):
    return self.task.sample_one(key)

  def redraw_one(self, key, prompt, keep):
    return self.task.redraw_one(key, prompt, keep)

  def sample_batch(self, key, batch_size):
    return self.task.sample_batch(key, batch_size)

  def loss(self, prediction, target):
    return self.task.loss(prediction, target)

  def baselines(self) -> dict[str, Any]:
    if self.chosen is not None:
      return dict(self.chosen)
    return {
      n: baseline for n, baseline in self.task.baselines().items() if n != 'bayes'
    }

  def shifts(self) -> dict[str, Any]:
    return {
      name: Wrapped(shifted, self.chosen)
      for name, shifted in self.task.shifts().items()
      if name.startswith('context_length=')
    }
