"""Makes 80 small mistakes in the library, one at a time: do the quick tests see them?

  python -m tests.mutants                       # all of them; run it once a week
  python -m tests.mutants 3 17                  # some of them
  python -m tests.mutants --first               # without the fallback to all tests
  python -m tests.mutants --tests ../old/tests  # with the tests of another tree
  python -m tests.mutants --check               # only whether each can still be made

A mistake changes one line in a copy of the working tree, where the quick tests then
run: first the files in which it should be seen, and if these pass, all of them. A line
is printed for each mistake: its number, whether it was caught, the seconds, the first
test that failed, and its name. The exit code is 1 if one is not caught.

Nothing counts as caught by accident. The tests of the tree's own texts, such as its
documents, are left out. At the end the tests that failed run once more, in
the copy without any mistake: one that fails there, too, has caught nothing.
"""

import argparse
import ast
import dataclasses
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from tests.trees import ROOT, changed, copy_to, failures

MOST_MISSED = 0
# Their subject is the text of the tree, in which a changed line may be noticed as such.
_OF_TEXTS = (*('test_mutants.py', 'test_docs.py', 'test_site.py'),)

# Of each mistake: its name; the file, and the files of tests in which it should be
# seen; a part of a line that occurs once in the file, and what replaces it. Mistakes
# are such as researchers would be hurt by, whether or not a test is known to see them.
_TABLE = r"""
the second moment of the examples is a sum, not a mean
  zoo/core/prompt.py: test_prompt.py test_learning_rule.py
  - z_bce) / max(z_bce.shape[1], 1)
  + z_bce)
the query of a prefix has the noisy label as its target
  zoo/core/prompt.py: test_prompt.py measure/test_curve.py
  - y_query=self.y[:, k] if targets is None else targets[:, k],
  + y_query=self.y[:, k],
held-out prompts are drawn from the stream of the training prompts
  zoo/core/draws.py: test_draws.py training/test_step.py training/test_run.py
  - EVAL_STREAM, CURVE_STREAM, REDRAW_STREAM = range(5)
  + EVAL_STREAM, CURVE_STREAM, REDRAW_STREAM = 0, 1, 1, 3, 4
chi variables are accepted by the words that proposed them
  zoo/core/draws.py: test_draws.py test_statistics.py
  - words(jax.random.fold_in(stream, 0), len(degrees), batch_size)
  + words(stream, len(degrees), batch_size)
the probabilities of classes are normalised over prompts
  zoo/core/losses.py: measure/test_curve.py tasks/test_gaussian_clusters.py
  - log_p = log_softmax(prediction)
  + log_p = log_softmax(prediction.T).T
the moment of k examples is divided by k + 1
  zoo/core/learning_rule.py: test_learning_rule.py measure/test_curve.py
  - counts_t = jnp.maximum(jnp.arange(z_bce.shape[1] + 1), 1)
  + counts_t = jnp.arange(1, z_bce.shape[1] + 2)
label noise is drawn with the key of the features
  zoo/tasks/linear_regression.py: tasks/test_linear_regression.py test_statistics.py
  - draws.normals(jax.random.fold_in(key, 1), count, batch_size)
  + draws.normals(key, count, batch_size)
the diagonal of Bartlett's factor has a degree of freedom too many
  zoo/tasks/linear_regression.py: test_statistics.py tasks/test_linear_regression.py
  - c - np.arange(d), batch_size)
  + c + 1 - np.arange(d), batch_size)
the labels of a function class are drawn with the key of its features
  zoo/tasks/base.py: tasks/test_logistic_regression.py tasks/test_relu_network.py
  - self._labelled(x, function_key, labels_key)
  + self._labelled(x, function_key, features_key)
every pool of tasks is that of the seed 0
  zoo/tasks/task_pool.py: tasks/test_task_pool.py
  - np.random.RandomState(seed)
  + np.random.RandomState(0)
a repeated query may repeat itself
  zoo/tasks/base.py: tasks/test_shifts.py
  - jax.random.randint(key, (), 0, len(x) - 1)
  + jax.random.randint(key, (), 0, len(x))
the penalty of the posterior mean is a standard deviation, not a variance
  zoo/estimators/linear.py: test_estimators.py
  - return Ridge(prior.noise_std**2, prior.mean, root,
  + return Ridge(prior.noise_std, prior.mean, root,
the best step of gradient descent ignores the label noise
  zoo/estimators/linear_prior.py: theory/test_schedules.py
  - spread=float(np.trace(product) + prior.noise_std**2)
  + spread=float(np.trace(product))
importance sampling does not divide by the density of its proposal
  zoo/tasks/logistic_regression.py: tasks/test_logistic_regression.py
  - jnp.sum(z * z) / 2 - proposal, score
  + jnp.sum(z * z) / 2, score
the first symbol of a chain is weighted by the law of the other symbol
  zoo/estimators/sequences.py: tasks/test_markov_chain.py
  - law = leave[None] / (leave[:, None] + leave[None])
  + law = leave[:, None] / (leave[:, None] + leave[None])
the product of keys and queries is transposed where heads are computed fast
  zoo/models/linear_attention.py: models/test_linear_family.py
  - 'hij,hik->hjk'
  + 'hij,hik->hkj'
the kernels of a residual stream start √2 times as large as in GPT-2
  zoo/models/transformer.py: models/test_transformer.py
  - Init(init_scale, 1 / math.sqrt(2 * num_layers))
  + Init(init_scale, 1 / math.sqrt(num_layers))
gradients flow through the loops that are not trained
  zoo/models/transformer.py: models/test_transformer.py
  - tokens = jax.lax.stop_gradient(tokens)
  + pass
residual labels subtract the guess of the next example
  zoo/models/token_model.py: models/test_token_model.py models/test_contract.py
  - prompt.labels - guess[:, :-1]
  + prompt.labels - guess[:, 1:]
the exact form of several scalar heads multiplies sums, not heads
  zoo/models/deep_lsa.py: models/test_deep_lsa.py theory/test_exact_forms.py
  - -jnp.sum(layer.a[...] * layer.b[...]) for layer in
  + -jnp.sum(layer.a[...]) * jnp.sum(layer.b[...]) for layer in
the speeds of rotary positions fall half as fast
  zoo/mixers/attention.py: mixers/test_reference.py
  - (-np.arange(half)[None] / half)
  + (-np.arange(half)[None] / half / 2)
a query of attention that is not causal does not see itself
  zoo/mixers/attention.py: mixers/test_reference.py mixers/test_contract.py
  - context_mask(n) | np.eye(n, dtype=bool)
  + context_mask(n)
keys of a chunk decay from its start, not to its end
  zoo/mixers/recurrence.py: mixers/test_linear_state.py
  - jnp.exp(last - total)[..., None, :, :] * places
  + jnp.exp(total)[..., None, :, :] * places
the inverse of a pole of S4D is not conjugated
  zoo/mixers/ssm.py: mixers/test_reference.py
  - _Diagonal(real / squares, -frequency / squares)
  + _Diagonal(real / squares, frequency / squares)
exact risks are computed in float32
  zoo/theory/risk.py: theory/test_exact.py
  - mean_square(jax.tree.map(jnp.float64, rule), moments, truth=1.0)
  + mean_square(jax.tree.map(jnp.float32, rule), moments, truth=1.0)
the estimate of the constant 1 has an error without the label noise
  zoo/theory/optimum.py: theory/test_optimum.py
  - kappa = 1 / (1 + rank * c / 2 + noise * signal)
  + kappa = 1 / (1 + rank * c / 2)
a moment of recurrences is not transposed
  zoo/theory/sequential.py: theory/test_sequential.py
  - features @ moment.T @ features
  + features @ moment @ features
a word of features is not reversed
  zoo/theory/deep/feature_moments.py: theory/test_feature_moments.py
  - after(before[::-1], behind)
  + after(before, behind)
the risk for labels has the mean square of what they are made from
  studies/paper/label_moments.py: paper/test_labels.py
  - target_parts, square = ((a.a11, 1), (a.a10, 0)), a.a20
  + target_parts, square = ((a.a11, 1), (a.a10, 0)), prior.lengths**2
the bound by heads hides the directions of least variance, not of most
  zoo/theory/head_limit.py: theory/test_head_limit.py
  - np.linalg.eigvalsh(prior)[num_seen:].sum()
  + np.linalg.eigvalsh(prior)[:num_hidden].sum()
an interval has one degree of freedom too many
  zoo/measure/intervals.py: measure/test_intervals.py
  - stdtrit(num - 1, (1 + confidence) / 2)
  + stdtrit(num, (1 + confidence) / 2)
the difference from a baseline has the wrong sign
  zoo/measure/comparison.py: measure/test_comparison.py
  - (model_losses[: len(losses)] - losses[:, -1])
  + (losses[:, -1] - model_losses[: len(losses)])
every batch of a curve has the same prompts
  zoo/measure/predict.py: measure/test_curve.py
  - programs.sample(fresh(task), jax.random.fold_in(key, start), size)
  + programs.sample(fresh(task), key, size)
a model may see the label that it predicts without breaking its contract
  zoo/contracts/checks.py: contracts/test_models.py
  - y[:, k:] += 1
  + y[:, k + 1 :] += 1
sampled labels have the variance of the noise as its standard deviation
  zoo/tasks/linear_regression.py: test_statistics.py
  - lambda: noise_std * self._noise(key, batch_size, is_pseudo)
  + lambda: noise_std * noise_std * self._noise(key, batch_size, is_pseudo)
each example is trained on the target of the query
  zoo/objectives/losses.py: training/test_objective.py
  - targets = batch.targets if every else batch.targets[:, -1:]
  + targets = batch.targets[:, -1:]
programs that differ in a constant alone are taken for one
  zoo/core/programs.py: test_programs.py
  - computed = hashlib.sha256(text.encode()).digest()
  + computed = hashlib.sha256(b'').digest()
the cosine does not end with the training
  zoo/training/optimizers.py: test_optimizers.py
  - peak, max(int(num_steps) - warmup, 1), share
  + peak, int(num_steps), share
what Adam makes of a gradient is clipped, not the gradient
  zoo/training/optimizers.py: test_optimizers.py
  - optax.chain(clip, optimizer)
  + optax.chain(optimizer, clip)
all steps of a call are trained on the same prompts
  zoo/training/step.py: training/test_step.py training/test_run.py
  - take_step(state, key, step, inputs)
  + take_step(state, key, start, inputs)
all held-out batches have the same prompts
  zoo/training/evaluation.py: training/test_evaluation.py
  - stream = jax.random.fold_in(key, index)
  + stream = jax.random.fold_in(key, 0)
a run that resumes loses the last line of its records
  zoo/training/records.py: training/test_records.py training/test_run.py
  - if line['step'] <= step]
  + if line['step'] < step]
losses of points side by side come back in the order of another permutation
  zoo/training/sweeps/stacking.py: training/test_evaluation.py training/test_sweeps.py
  - back = np.argsort(np.concatenate([*groups.values()]))
  + back = np.concatenate([*groups.values()])
an array that is fully sharded is split along its shortest axis
  zoo/sharding.py: training/test_fsdp.py
  - longest = max(
  + longest = min(
the CPU time of a step is in seconds, not in milliseconds
  zoo/training/loop.py: training/test_records.py
  - 1e3 * cpu_seconds / num_steps
  + cpu_seconds / num_steps
the nearest algorithm is fitted to all prompts
  zoo/probing/nearest/sampled.py: probing/test_sampled.py
  - lambda array: array[num_prompts // 2 :]
  + lambda array: array
attention maps of linear attention are key by query
  zoo/probing/activations.py: probing/test_activations.py
  - maps[layer] = jnp.swapaxes(value, -1, -2) if of_heads else value
  + maps[layer] = value
a number far below another is within a share of it
  studies/paper/setting.py: paper/test_claims.py
  - return abs(number / other - 1) <= share
  + return number / other - 1 <= share
what a model has not learned is a share of the whole loss, not of the learnable one
  studies/atlas/results.py: atlas/test_results.py
  - (loss - self.floor) / (self.without - self.floor)
  + (loss - self.floor) / self.without
a loss is like that of Bayes however far apart its seeds are
  studies/atlas/results.py: atlas/test_results.py
  - return scale_of(rows, row.prompts).share(row.loss.high) < LIKE_BAYES
  + return scale_of(rows, row.prompts).share(row.loss.low) < LIKE_BAYES
the best of several runs is that with the greatest loss
  studies/runner.py: headlines/test_run.py
  - return min(known or rows, key=
  + return max(known or rows, key=
a report obeys the HTML in the texts that it shows
  zoo/reports/page.py: reports/test_page.py
  - autoescape=True
  + autoescape=False
the newest checkpoint is the last by its digits, so that 90 is after 100
  zoo/storage/steps.py: checkpoints/test_checkpoints.py training/test_run.py
  - return sorted(int(name) for name in names if (folder / name / SUMS).exists())
  + return [int(name) for name in sorted(names) if (folder / name / SUMS).exists()]
a saved model forgets for how many steps it was trained
  zoo/storage/saving.py: checkpoints/test_saving.py checkpoints/test_loading.py
  - new_origin(content, step)
  + new_origin(content, 0)
two runs may train in one folder at the same time
  zoo/storage/workdir.py: test_workdir.py
  - return lock.acquire()
  + return contextlib.nullcontext()
a saved config may lack a field that may change
  zoo/config/saved.py: test_config.py
  - (free & before.keys() & now.keys())
  + free
Holm's adjusted p values may fall
  zoo/measure/tests.py: measure/test_tests.py
  - largest = max(largest, min(1.0, (len(tested) - rank) * adjusted[place]))
  + largest = min(1.0, (len(tested) - rank) * adjusted[place])
all prompts for a language model have the same examples
  studies/llm/prompts.py: llm/test_prompts.py
  - np.random.default_rng((seed, index)).permutation(num_contexts)
  + np.random.default_rng(seed).permutation(num_contexts)
a folder in use ends a command with the code of a user's mistake
  launch/cli.py: launch/test_main.py
  - _exit(IN_USE if isinstance(error, InUseError) else 2, error)
  + _exit(2, error)
a range of a sweep lacks its last value
  launch/axes.py: launch/test_sweep.py
  - return field, list(range(first, last + 1))
  + return field, list(range(first, last))
a run that resumes takes its last step again
  zoo/training/run.py: training/test_run.py
  - return step, checkpoints.load(step, training.abstract)
  + return step - 1, checkpoints.load(step, training.abstract)
the weights of a chosen step are those of the newest
  zoo/storage/steps.py: checkpoints/test_loading.py
  - return folder / str(step)
  + return folder / str(steps[-1])
a longer launch replaces the records of a finished run before its first save
  zoo/training/records.py: training/test_going_on.py
  - if not waits:
  + if waits is not None:
the summary of a point of a sweep is written before its weights
  zoo/training/sweeps/run.py: training/test_many.py
  - save_result(folder, num_steps, state, content, summary['history'])
  + write_summary(folder, summary), save_result(folder, num_steps, state, content)
points side by side are trained on the prompts of each other's seeds
  zoo/training/sweeps/stacking.py: training/test_sweeps.py
  - return jnp.stack([stream_of(config.seed, stream) for config in configs])
  + return jnp.stack([stream_of(config.seed, stream) for config in configs[::-1]])
a model is evaluated on the examples with which it is trained
  zoo/training/evaluation.py: tasks/test_arrays.py
  - task = experiment.task.held_out()
  + task = experiment.task
the error of the held-out loss is that of batches, not of prompts
  zoo/training/evaluation.py: training/test_evaluation.py
  - num_prompts=config.eval.num_batches * config.train.batch_size
  + num_prompts=config.eval.num_batches
a run stays at the first stage of its curriculum
  zoo/training/step.py: training/test_curriculum.py
  - stage=stage_at(config.curriculum, step)
  + stage=stage_at(config.curriculum, 0 * step)
the decay of a stable learning rate ends after the training
  zoo/training/optimizers.py: test_optimizers.py
  - _wsd(peak, share, num_steps - warmup, section.decay_share * num_steps)
  + _wsd(peak, share, num_steps, section.decay_share * num_steps)
several estimates are above 0 without Holm's correction
  zoo/measure/tests.py: measure/test_tests.py
  - p_values = holm(_p_values_above_zero(values, rounding))
  + p_values = _p_values_above_zero(values, rounding)
the jackknife's values of a correlation are not multiplied by the number of prompts
  zoo/probing/attention_heads.py: probing/test_patch.py
  - pseudo = count * whole - (count - 1) * np.array(without_one)
  + pseudo = whole + whole - np.array(without_one)
a value that passes a mask as NaN alone reaches the prediction
  zoo/probing/reach.py: probing/test_edit.py
  - return by_noise & jnp.any(differs[-1] | jnp.isnan(after[-1]))
  + return by_noise | jnp.any(differs[-1] | jnp.isnan(after[-1]))
a value is resampled from its own other entries, not from the next prompt
  zoo/probing/edit.py: probing/test_patch.py
  - return jnp.roll(value, -1, axis=0)
  + return jnp.roll(value, -1, axis=-1)
a circuit is judged on the prompts on which it was chosen
  zoo/probing/circuits.py: probing/test_circuits.py
  - judged = _judged(runner, judging, search.order, search.num_kept, seed)
  + judged = _judged(runner, choosing, search.order, search.num_kept, seed)
task vectors are tested on the prompts that they are made from
  zoo/probing/task_vector.py: probing/test_task_vector.py
  - halves = slice(num_prompts), slice(num_prompts, None)
  + halves = slice(num_prompts), slice(num_prompts)
a fitted readout is measured on the prompts of its fit
  zoo/probing/logit_lens.py: probing/test_logit_lens.py
  - np.linalg.lstsq(inputs[num_prompts:], targets[num_prompts:])[0]
  + np.linalg.lstsq(inputs[:num_prompts], targets[:num_prompts])[0]
distances of layers are shares of the variation over contexts on other prompts
  zoo/probing/nearest/by_layer.py: probing/test_by_layer.py
  - left = variation[num_prompts // 2 :]
  + left = variation[: num_prompts - num_prompts // 2]
the likelihood of numbers has the variance ½
  zoo/probing/nearest/mixtures.py: probing/test_mixtures.py
  - log_likelihoods = -np.square(seen - others[:, :, :-1])[..., 0] / 2
  + log_likelihoods = -np.square(seen - others[:, :, :-1])[..., 0]
labels of a martingale are drawn for the features of the example before
  zoo/measure/bayesian.py: measure/test_calibrate.py
  - asked = dataclasses.replace(seen, x_query=prompt.x[:, length])
  + asked = dataclasses.replace(seen, x_query=prompt.x[:, length - 1])
the log density of a table's numbers takes the decimal logarithm of their unit
  zoo/sklearn/units.py: sklearn/test_regressor.py
  - np.log(self.units.unit)
  + np.log10(self.units.unit)
"""


@dataclasses.dataclass(frozen=True)
class Mistake:
  """A part of one line of a file, and what replaces it."""

  number: int
  name: str  # what is wrong, in a sentence
  path: str
  tests: tuple[str, ...]  # where it should be seen, in the folder of the tests
  old: str
  new: str

  def problem(self) -> str | None:
    """Why the mistake cannot be made in the working tree, if so."""
    text = (ROOT / self.path).read_text(encoding='utf-8')
    if (count := text.count(self.old)) != 1:
      return f'{self.path} has {count} times, not once: {self.old}'
    try:
      ast.parse(text.replace(self.old, self.new))
    except SyntaxError as error:
      return f'{self.path}, line {error.lineno}, is not Python with: {self.new}'
    missing = [name for name in self.tests if not (ROOT / 'tests' / name).is_file()]
    return f'there is no {missing[0]} in tests' if missing else None


def _parse(table: str) -> Iterator[Mistake]:
  lines = [line.strip() for line in table.strip().splitlines()]
  for i in range(0, len(lines), 4):
    name, where, old, new = lines[i : i + 4]
    path, tests = where.split(': ')
    assert (old[:2], new[:2]) == ('- ', '+ '), name
    yield Mistake(i // 4 + 1, name, path, tuple(tests.split()), old[2:], new[2:])


MISTAKES = tuple(_parse(_TABLE))


def problems() -> list[str]:
  """What is wrong with the table; empty if every mistake can be made."""
  found = [(one, one.problem()) for one in MISTAKES]
  return [f'{one.number} ({one.name}): {why}' for one, why in found if why]


def first_failure(mistake: Mistake, tree: pathlib.Path, only_first: bool) -> str | None:
  """The first test that fails with a mistake; None if all pass."""
  files = [f'tests/{name}' for name in mistake.tests]
  with changed(tree / mistake.path, mistake.old, mistake.new, mistake.number):
    there = [name for name in files if (tree / name).is_file()]
    found = failures(tree, '-x', '-n', '0', *there) if there else []
    if not (found or only_first):
      left_out = [f'--ignore=tests/{name}' for name in _OF_TEXTS]
      found = failures(tree, '-n', '2', '--maxfail=1', *left_out)
  return found[0] if found else None


def measure(
  mistakes: Sequence[Mistake], tests: pathlib.Path | None, only_first: bool
) -> int:
  """Makes the mistakes one by one, and prints what sees them; how many are missed."""
  caught: dict[Mistake, str] = {}
  with tempfile.TemporaryDirectory(prefix='mutants_') as folder:
    tree = pathlib.Path(folder).resolve()
    copy_to(tree, tests)
    for mistake in mistakes:
      start = time.monotonic()
      test = first_failure(mistake, tree, only_first)
      verdict = 'NOT CAUGHT' if test is None else 'caught'
      seconds = f'{time.monotonic() - start:4.0f} s'
      words = f'{mistake.number:2}', f'{verdict:10}', seconds, test or '-', mistake.name
      print(*words, sep='  ', flush=True)
      if test is not None:
        caught[mistake] = test
    again = sorted({test for test in caught.values() if '::' in test})
    broken = failures(tree, '-n', '0', *(again or ['tests/test_prompt.py']))
  if broken and not broken[0].startswith('tests/'):
    raise SystemExit(f'without any mistake {broken[0]}')
  for mistake, test in caught.copy().items():
    if test in broken:
      print(f'{mistake.number} is not caught: {test} fails without it, too')
      del caught[mistake]
  print(f'{len(caught)} of {len(mistakes)} are caught')
  return len(mistakes) - len(caught)


def main() -> int:
  parser = argparse.ArgumentParser(prog='tests.mutants', description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument('numbers', nargs='*', type=int, help='which; by default all')
  parser.add_argument('--first', action='store_true', help='only the files named')
  parser.add_argument('--tests', type=pathlib.Path, help='a folder of other tests')
  parser.add_argument('--check', action='store_true', help='only check the table')
  given = parser.parse_args()
  if found := problems():
    print(*found, sep='\n')
    return 2
  if given.check:
    return 0
  if unknown := {*given.numbers} - {one.number for one in MISTAKES}:
    parser.error(f'there is no mistake {min(unknown)}')
  chosen = [one for one in MISTAKES if one.number in given.numbers or not given.numbers]
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    missed = measure(chosen, given.tests, given.first)
  except KeyboardInterrupt:
    return 130
  return int(missed > MOST_MISSED)


if __name__ == '__main__':
  sys.exit(main())
