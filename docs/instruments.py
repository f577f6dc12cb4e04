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

This page defines the numbers that `zoo.probing` returns, function by function, and says
how the functions are tested. It is for readers who want to know what a number means
before they quote it.

An *instrument* is a public function that returns numbers about a model. Each one states
its quantity and its null. Most also state a counterfactual, and a denominator if the
number is a share:

| part | what it says |
|---|---|
| *quantity* | what is estimated, as a formula |
| *null* | the value for a model without the property |
| *counterfactual* | the distribution from which changed inputs or values are drawn |
| *denominator* | what a share is divided by |

Everywhere ± is the standard error times Student's t, or the end of an interval that is
farther away. It is [half of a 95 % interval](glossary.md#intervals) from the numbers of
prompts on that are [below](#how-often-intervals-contain-the-truth). In the formulas f
is the prediction of the model, y the target, E L a mean loss, and E Var(f | x_q) the
[variation over contexts](unexplained.md#the-variation-over-contexts). The pages
[Which algorithm](probing.md) and [Patch and ablate](inside.md) say how to use the
functions.

"""
_EXAMPLE = """import dataclasses

import jax
import jax.numpy as jnp

import zoo
from zoo.measure.intervals import estimate

task = zoo.create_task('linear_regression', num_features=2, context_length=4)


def moves(model, task, seed):
  # How far a prediction moves when the labels change their sign.
  prompt = task.sample(jax.random.key(seed), 256)
  other = dataclasses.replace(prompt, y=-prompt.y)
  return estimate(jnp.abs(model(prompt) - model(other)))


untrained = ['untrained transformer', 'untrained lstm', 'untrained deep_set']
signs = zoo.probing.Planted(lambda prompt: 3 * jnp.sign(prompt.y[:, 0]), 6.0)
planted = {'3 · the sign of a label': signs}
print(zoo.check_instrument(moves, task, without=untrained, planted=planted))
"""
_CHECK = """
## Check an instrument of your own

`zoo.check_instrument(function, task)` checks an instrument of yours in the way in which
the tests check those of the library:

- on models without the property: constants, functions of the query alone or of the
  features alone, untrained models, and a trained model that is given no examples, no
  labels, or labels of another function. It is right to return no reading for some of
  these models. If there is no reading for any of them, the check fails;
- on models that were built to have the property (`planted`). A reading is wrong if its
  95 % interval contains both the truth and the null: it cannot tell them apart. Give at
  least one such model: an instrument that always returns 0 is right on all models
  without the property. If there are none, the printed table says so;
- for how often its 95 % interval contains the truth (coverage). This part is off by
  default. `num_draws=200` turns it on: each planted model is then read with 200 seeds.
  The coverage is accepted if 181 to 197 of these 200 intervals contain the truth. If
  the true coverage is 0.95, fewer hits have a probability of 0.3 %, and more have one
  of 0.2 %.

With 200 seeds these true coverages are found to be wrong with these probabilities, by
the binomial distribution:

| true coverage | 0.85 | 0.87 | 0.90 | 0.92 | 0.95 | 0.98 | 0.99 | 1 |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| found to be wrong | 99 % | 92 % | 53 % | 18 % | 0.5 % | 24 % | 68 % | 100 % |

If your intervals are known to be a little too narrow, say so: with
`coverage=(0.93, 0.95)` 176 to 197 hits of 200 are accepted.

This instrument measures how far a prediction moves when all labels change their sign.
Untrained models react to labels, too, so they have this property. The argument
`without` therefore leaves them out of the models without it. The planted model predicts
3 or −3 by the sign of the first label, so that its prediction moves by 6:

"""
_REST = """
If an instrument is wrong, `zoo.check_instrument` raises a `UserError` with the table of
the wrong readings.
"""
_TABLES = """
## Results as tables

`effects`, `circuit`, `head_scores`, `heads`, `probe_latents`, `probe_beliefs`, `steer`,
`interchange`, `task_vectors`, `lens`, `strategies` and `layer_algorithms` return rows:

| call | what it gives |
|---|---|
| `print(result)` | a table |
| `result.records()` | a list of dictionaries |
| `result.to_frame()` | a data frame; pandas must be installed in addition |
| `result.to_csv(path)` | a file |

In records, data frames and files an estimate has three columns, such as `recovered`,
`recovered_stderr` and `recovered_num`, the number of draws. An interval that is not
that of a mean has three, too: `random_r2`, `random_r2_half` and `random_r2_confidence`.
`launch.probe --interventions` writes these files beside its pictures.
"""
_COVERED = """
## How often intervals contain the truth

A 95 % interval should contain the truth in 95 % of repetitions. Each row of this table
is a kind of estimate, on one model whose truth is known. Its last column is the share
of 200 repetitions in which the interval contained the truth. The number after ± is the
distance from this share to the farther end of Wilson's 95 % interval
(`zoo.measure.intervals.wilson`). By the binomial test at 5 %, the shares
0.905 and 0.910 are below 0.95, and the other five are not seen to differ from it. The
mean of the seven shares is 0.93, so these intervals are a little too narrow: they miss
the truth in some 7 % of repetitions where 5 % is meant. For this reason the tests of
`sampled_algorithm` and `effects` claim a coverage of 0.93 to 0.95. The other tests
claim 0.95. Other models and other numbers of prompts may give other shares:
`sampled_algorithm`, for example, was read with 2048 prompts, where its default is
16,384, on a model whose true share is 1.48.

From these numbers of prompts on ± is called a 95 % interval, since it was then seen to
contain the truth in 93 to 97 % of repetitions, up to the error of this share. Headings
of tables say `± t·s.e.` if there are fewer:

| what is measured | prompts |
|---|--:|
| means of losses, shares of a gap, circuits, R² | 1024 |
| squared differences of predictions, as in `sampled_algorithm` | never |

Fewer prompts are not refused, except by `sampled_algorithm` below 2048, by
`head_scores` and `interchange` below 512, by `task_vectors` below 128 functions, by
`circuit`, `strategies` and `across_seeds` below 64 prompts, by `probe_beliefs` and
`steer` below 128 prompts, and by `probe_latents` below 128 prompts or three untrained
models: with two, the interval of `above_untrained`
contained the truth in 0.87 of 1000 draws, and with three in 0.94. Where a gap of losses
is less than 8 standard errors from 0, its shares have Fieller's set at 3 standard
errors.
With skewed losses of 16 to 2048 prompts, 99.6 to 100 % of these sets contain the truth.

The other instruments are not read 200 times. What they compute from the values of
prompts is tested on values that are drawn in NumPy. A coverage passes if it is at most
three binomial errors below the one that is claimed:

- means and ratios of skewed values: `alignment`, `jacobian_lens`, `lens`, `task_shift`,
  and `unexplained` of `strategies` and of `elimination`
- shares of a gap, from 16 prompts on: `circuit`, `path_effect`, `path_effects`, and
  `effects` by gradients
- R² on other prompts, and beside untrained models: `probe_latents`, `probe_beliefs`
- correlations: `head_scores`
- ranges of the nearest number of steps: `layer_algorithms`
- means over models or chains: `across_seeds`, `local_learning_coefficient`

The coverage of `steer` has a test (`--full`) whose shares are not measured yet, and
that of `interchange` has none. The numbers of `learned_guess`, the shares of
`layer_algorithms` and the correlations of `across_seeds` have no intervals. The
instruments `attribution`, `copying_score`, `heads`, `implicit_algorithm`, `ov` and `qk`
are identities or closed forms without sampling error.

This command measures the shares of the table:

```sh
python -m pytest --slow --full -m slow -rA tests/probing/test_instruments.py
```

"""
# What is estimated, on which model, its truth, and how often intervals contain it.
_COVERAGE = (
  (
    '`risks`: a mean',
    'two steps of gradient descent',
    '0.9515',
    '0.945 ± 0.041',
  ),
  (
    '`sampled_algorithm`: a ratio after a fit',
    'linear attention',
    'its share in closed form',
    '0.905 ± 0.049',
  ),
  (
    '`strategies`: weights that add up to 1',
    'a mixture with a weight close to 0, and noise',
    '0.02, 0.98',
    '0.955 ± 0.038',
  ),
  (
    '`effects`: a share of a gap, by 0 in place of the value',
    'two halves of a label',
    '0.125',
    '0.930 ± 0.044',
  ),
  (
    'the same, by the mean over prompts',
    'two halves of a label',
    '0.125',
    '0.910 ± 0.048',
  ),
  (
    'the same, by the value of the next prompt',
    'two halves of a label',
    '0.25',
    '0.930 ± 0.044',
  ),
  (
    '`task_vectors`: a gain over the vector of another function',
    'the mean label',
    '2',
    '0.920 ± 0.046',
  ),
)


def page() -> str:
  """The page, in Markdown, with what the example prints."""
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    exec(compile(_EXAMPLE, 'docs/instruments.py', 'exec'), {})
  example = f'```python\n{_EXAMPLE}```\n\n```text\n{printed.getvalue()}```\n'
  header = 'estimate', 'model', 'truth', 'share of 95 % intervals that contain it'
  coverage = Table(_COVERAGE, header).markdown({2, 3})
  parts = [_HEAD, '## The instruments\n\n']
  for name in sorted(instruments()):
    said = stated(name)
    parts.append(f'### `{name}`\n\n{_first_line(name)}\n\n')
    parts += [f'- *{part}*: {said[part]}\n' for part in PARTS if part in said]
    parts.append('\n')
  parts += [_CHECK.lstrip('\n'), example, _REST, _TABLES, _COVERED, coverage, '\n']
  parts.append(
    '\n`python docs/instruments.py` writes this page from the docstrings of '
    '`zoo.probing`.\n'
  )
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


def _first_line(name: str) -> str:
  """The first line of the docstring of a function, which says what it does."""
  return (inspect.getdoc(getattr(probing, name)) or '').partition('\n')[0]


def main() -> None:
  (_FOLDER / 'instruments.md').write_text(page())


if __name__ == '__main__':
  main()
