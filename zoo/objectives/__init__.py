"""Objectives: what a run minimises. Each is a class in a file of its own.

- `sampled`: the mean loss of fresh prompts (`Sampled`, sampled.py).
- `nll`: the mean negative log likelihood of observed labels (`Likelihood`, nll.py).
- `rows`: the likelihood of many rows of one table (`Rows`, rows.py).
- `exact`: the expected loss, by theory (`Exact`, exact.py).
- A function that a user registers is wrapped in `OfFunction` (functions.py).

`build_objective` makes the one that a config names. Its constructor checks that it fits
the task, the model and the other fields of the config.
"""

from zoo.config.run import Run
from zoo.core.protocols import Model, Task
from zoo.core.registry import check_registered
from zoo.objectives.base import Objective as Objective
from zoo.objectives.base import StepInputs as StepInputs
from zoo.objectives.base import inputs_of as inputs_of
from zoo.objectives.exact import Exact as Exact
from zoo.objectives.functions import OBJECTIVES
from zoo.objectives.functions import OfFunction as OfFunction
from zoo.objectives.functions import PerPrompt as PerPrompt
from zoo.objectives.nll import Likelihood as Likelihood
from zoo.objectives.rows import Rows as Rows
from zoo.objectives.sampled import Sampled as Sampled

OBJECTIVES.update(sampled=Sampled, nll=Likelihood, rows=Rows, exact=Exact)


def build_objective(config: Run, task: Task, model: Model) -> Objective:
  """Returns the objective that a config names.

  Args:
    config: The config of the run.
    task: Its task, with concrete numbers.
    model: Its model, which may be abstract.

  Raises:
    UserError: If the objective does not fit the task, the model or the config.
  """
  name = check_registered('config.objective.name', config.objective.name, OBJECTIVES)
  entry = OBJECTIVES[name]
  if isinstance(entry, type):
    return entry(config, task, model)
  return OfFunction(config, task, model, entry)
