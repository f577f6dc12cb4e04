"""The training of the models of the figures, with few compiled programs."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from studies.runner import Trainer, histories
from zoo.host.parts import Part
from zoo.training.sweeps import Row

Field = int | float | tuple  # the value of a field of a config


class Recipe(NamedTuple):
  """How models are trained that differ only in the fields of their points.

  Attributes:
    config: The config, such as `lsa:paper`. One without a variant trains to
      convergence.
    evaluations: How often the risk is sampled during training.
    eval_batches: The number of batches of each evaluation.
    checkpoints: The number of checkpoints, evenly spread up to the end of training.
  """

  config: str
  evaluations: int = 1
  eval_batches: int = 4
  checkpoints: int = 1

  @property
  def folder(self) -> str:
    """The name of the folder, which differs for each recipe."""
    name, _, variant = self.config.partition(':')
    return '-'.join([name, variant or 'default', *map(str, self[1:])])


class PaperPoint(NamedTuple):
  """A model that is trained once for every seed.

  Attributes:
    recipe: How it is trained.
    fields: The fields of its config and their values, sorted by name.
  """

  recipe: Recipe
  fields: tuple[tuple[str, Field], ...] = ()


def point(recipe: Recipe, fields: Mapping[str, Field]) -> PaperPoint:
  """Returns a point with fields of the config, such as `task.prior_mean`."""
  return PaperPoint(recipe, tuple(sorted(fields.items())))


class Runs(NamedTuple):
  """The finished runs.

  Attributes:
    rows: The rows of the runs by point, one row for each seed.
    objective: What the runs were trained on, `sampled` prompts or the `exact` risk.
  """

  rows: dict[PaperPoint, list[Row]]
  objective: str = 'sampled'

  def history(
    self, point: PaperPoint, field: str = 'exact_risk'
  ) -> tuple[list[int], list[list[float]]]:
    """Returns the logged steps of a point that have a field, and its values by seed."""
    return histories(self.rows[point], field)


def train_all(
  points: Iterable[PaperPoint],
  num_seeds: int,
  objective: str,
  train: Trainer,
  part: Part | None = None,
) -> Runs:
  """Trains every point once for each seed, unless the folder has the finished run.

  Args:
    points: The models to train. Repeated points are trained once.
    num_seeds: The number of seeds, from 0 on.
    objective: What to train on, `sampled` prompts or the `exact` risk.
    train: Trains the runs; its errors are passed on.
    part: Trains only a part of the runs. The result then has no rows.

  Returns:
    The rows of the runs of each point, one for each seed.
  """
  recipes: dict[Recipe, list[PaperPoint]] = {}
  for member in dict.fromkeys(points):
    recipes.setdefault(member.recipe, []).append(member)
  rows: dict[PaperPoint, list[Row]] = {}
  for recipe, members in recipes.items():
    changes = [
      {**dict(member.fields), 'seed': seed}
      for member in members
      for seed in range(num_seeds)
    ]
    fields = _fields_of(recipe, objective, train)
    if recipe.checkpoints == 1:
      trained = train(recipe.folder, recipe.config, fields, changes, part)
    else:  # only a run that is trained by itself saves checkpoints during training
      trained = []
      for change in changes if part is None else part.of(changes):
        name = ','.join(f'{field}={value}' for field, value in change.items())
        trained += train(f'{recipe.folder}/{name}', recipe.config, fields, [change])
    if part is None:
      for start, member in enumerate(members):
        rows[member] = trained[start * num_seeds : (start + 1) * num_seeds]
  return Runs(rows, objective)


def _fields_of(recipe: Recipe, objective: str, train: Trainer) -> dict[str, object]:
  """Returns the fields of the config that all runs of a recipe share."""
  num_steps = train.config(recipe.config).train.num_steps
  # With the exact objective, only recipes that plot sampled risks sample them.
  sampled = objective == 'sampled' or recipe.evaluations > 1
  fields: dict[str, object] = {
    'objective.name': objective,
    'eval.every': -(-num_steps // recipe.evaluations),
    'eval.num_batches': recipe.eval_batches if sampled else 0,
    'checkpoint.keep': recipe.checkpoints,
  }
  # With the exact objective a step takes almost no time.
  if recipe.checkpoints > 1 or objective == 'exact':
    fields['checkpoint.every'] = -(-num_steps // recipe.checkpoints)
  return fields
