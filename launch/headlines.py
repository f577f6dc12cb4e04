"""Measures well-known numbers of in-context learning again.

  python -m launch.headlines                    # about four hours on two cores
  python -m launch.headlines --list             # the names, and minutes of each
  python -m launch.headlines one_step markov_phases --out=runs/headlines

A headline is a well-known result of the literature, with a number that is measured
again. Without names the command measures all of them.

Rerun the same command to resume after an interruption. Rerun it with other names to add
them to the report. Each call measures the numbers anew, but trains a finished run again
only if its settings have changed.

N processes divide the headlines if each is started with --part=I/N, I = 1, …, N;
afterwards the command without --part writes the report.
"""

from absl import flags

import configs
from launch import cli
from launch.drawing import Drawing
from zoo.core.errors import check_name

flags.adopt_module_key_flags(cli)
flags.FLAGS.set_gnu_getopt()  # With this, flags may follow names.
_LIST = flags.DEFINE_bool(
  'list',
  False,
  'Print the name, the minutes and the statement of each, and measure nothing.',
)
_OUT = flags.DEFINE(
  cli.Workdir(),
  'out',
  'checkpoints/runs/headlines',
  'Folder for the runs, the figures (PNG, SVG and CSV), `headlines.json` and '
  '`report.html`.',
)
_PART = cli.define_part('headlines', 'compute')
_DRAWING = Drawing(has_texts=False)


def main(names: list[str]) -> None:
  # Imported here so that a mistyped flag is reported at once.
  from studies import headlines
  from studies.study import table

  known = headlines.HEADLINES
  for name in names:
    check_name('headline', name, known)
  wanted = [known[name] for name in dict.fromkeys(names or known)]
  if _LIST.value:
    for study in wanted:
      print(f'{study.name:<16}{study.minutes:>5g} min  {study.statement}')
    return
  with _DRAWING.wishes():
    results = headlines.run(wanted, configs.get_config, _OUT.value, _PART.value)
  where = f'the report is {_OUT.value}/report.html'
  cli.print_results(results, table, where, _OUT.value, _PART.value)


if __name__ == '__main__':
  cli.run(main, takes_names=True)
