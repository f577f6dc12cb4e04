"""Writes docs/instruments.md, what each instrument measures, and its null.

python docs/instruments.py
"""

import contextlib
import inspect
import io
import pathlib
import re

from zoo import probing
from zoo.core.tables import Table

_FOLDER = pathlib.Path(__file__).resolve().parent
PARTS = 'Quantity', 'Null', 'Counterfactual', 'Denominator'
_HEAD = """# What each instrument measures

An instrument is a public function that returns numbers about a model. Its docstring
says four things, which stand here side by side: the *quantity* that is estimated; its
*null*, the value for a model without the property; the *counterfactual*, the
distribution that changed inputs or values come from; and the *denominator* of a share.
What follows ± anywhere is half of a 95 % interval.

`zoo.check_instrument(function, task)` checks an instrument of yours as the tests check
these: on models without the property (constants, functions of the query alone or of the
features alone, untrained models, and a trained model that is given no examples, no
labels, or labels of another function), on models that were built to have it, and for
how often its 95 % interval contains the truth.

"""
_EXAMPLE = """import dataclasses

import jax
import jax.numpy as jnp

import zoo
from zoo.measure.statistics import estimate

task = zoo.create_task('linear_regression', num_features=2, context_length=4)


def moves(model, task, seed):
  # How far a prediction moves when the labels change their sign.
  prompt = task.sample(jax.random.key(seed), 256)
  other = dataclasses.replace(prompt, y=-prompt.y)
  return estimate(jnp.abs(model(prompt) - model(other)))


untrained = ['untrained transformer', 'untrained lstm', 'untrained deep_set']
print(zoo.check_instrument(moves, task, without=untrained))
"""
_REST = """
Here the property is that labels matter, which they do in untrained models, too; so
these are left out. An instrument that is wrong raises a `UserError` with the table of
the readings that are.

## Results as tables

`effects`, `circuit`, `head_scores`, `heads`, `probe_latents`, `task_vectors`,
`strategies` and `algorithms` return rows: `print(result)` shows a table,
`result.records()` is a list of dictionaries, `result.to_frame()` a data frame (with
pandas, which is not installed with the library) and `result.to_csv(path)` a file. There
an estimate has two columns, such as `recovered` and `recovered_stderr`.
`launch.probe --interventions` writes these files beside its pictures.

## How often intervals contain the truth

Of 200 draws each, for each kind of estimate on a model whose truth is known
(`python -m pytest --slow -m slow -rA tests/probing/test_instruments.py`); ± is half of
a 95 % interval of the share.

"""
_LAST = """
## All of them

"""

# What is estimated, on which model, its truth, and how often intervals contain it.
_COVERAGE = (
  (
    'a mean: `risks`',
    'two steps of gradient descent',
    '0.9515',
    '0.945 ± 0.032',
  ),
  (
    'a ratio after a fit: `sampled_algorithm`',
    'linear attention',
    'its share in closed form',
    '0.900 ± 0.042',
  ),
  (
    'weights on a simplex: `strategies`',
    'a mixture at the edge, and noise',
    '0.02, 0.98',
    '0.955 ± 0.029',
  ),
  (
    'a share of a gap: `effects`, 0 in its place',
    'two halves of a label',
    '0.125',
    '0.930 ± 0.035',
  ),
  (
    'the same, the mean in its place',
    '',
    '0.125',
    '0.910 ± 0.040',
  ),
  (
    'the same, with the next prompt',
    '',
    '0.25',
    '0.930 ± 0.035',
  ),
  (
    'a gain over the next function: `task_vectors`',
    'the mean label',
    '2',
    '0.920 ± 0.038',
  ),
)


def page() -> str:
  """The page, in Markdown, with what the example prints."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(compile(_EXAMPLE, 'docs/instruments.py', 'exec'), {})
  example = f'```python\n{_EXAMPLE}```\n\n```text\n{printed.getvalue()}```\n'
  header = 'estimate', 'model', 'truth', '95 % intervals contain it'
  coverage = Table(_COVERAGE, header).markdown({2, 3})
  parts = [_HEAD + example + _REST + coverage + '\n' + _LAST]
  for name in sorted(instruments()):
    said = stated(name)
    parts.append(f'### `{name}`\n\n')
    parts += [f'- {part}: {said[part]}\n' for part in PARTS if part in said]
    parts.append('\n')
  parts.append('`python docs/instruments.py` writes this page from the docstrings.\n')
  return ''.join(parts)


def instruments() -> list[str]:
  """The names of the functions of zoo.probing that state a quantity."""
  return [name for name in vars(probing) if 'Quantity' in stated(name)]


def stated(name: str) -> dict[str, str]:
  """What the docstring of a function states, by part."""
  function = getattr(probing, name)
  if not inspect.isfunction(function):
    return {}
  text = inspect.getdoc(function) or ''
  found = re.findall(r'^- (\w+): (.*(?:\n  \S.*)*)', text, re.MULTILINE)
  return {part: ' '.join(said.split()) for part, said in found if part in PARTS}


def main() -> None:
  (_FOLDER / 'instruments.md').write_text(page())


if __name__ == '__main__':
  main()
