"""Asks a language model for labels, with and without guesses (arXiv 2512.04268).

  python -m launch.llm --config=configs/llm/smollm2.py --data=STSB --out=runs/smollm2
  python -m launch.llm --config=configs/llm/smollm2.py:smoke --data=STSB
  python -m launch.llm --config=configs/llm/smollm2.py --data=STSB \\
      --config.guess.model=cosine --config.prompts.context_split=dev --out=runs/honest
  python -m launch.llm --config=configs/llm/smollm2.py --data=STSB --out=runs/llama \\
      --config.model.weights=LLAMA --config.model.dtype=bfloat16
  python -m launch.llm --config=configs/llm/smollm2.py:trec_qa --data=TREC_QA
  python -m launch.llm --config=configs/llm/ablation.py --data=STSB --out=runs/ablation

This repeats figure 6 of the paper: the prompt shows a guess of each label, and the
answers of the model are compared with those without guesses.

STSB is a folder with the three files stsb-en-*.csv of
github.com/PhilipMay/stsb-multi-mt. LLAMA is a folder of Hugging Face or a GGUF file,
with any decoder that the library transformers has. studies/llm/README.md describes the
other benchmarks, and how to use your own.

Rerun the same command to resume after an interruption. N processes divide the cells of
an ablation if each is started with --part=I/N, I = 1, …, N; afterwards the command
without --part writes the table.
"""

from typing import Any

from absl import flags

from launch import cli, config_flag
from launch.drawing import Drawing
from zoo.core.errors import UserError
from zoo.host.files import user_path

flags.adopt_module_key_flags(cli)
_CONFIG = config_flag.define(
  'Config file of `configs/llm`, with variants of it after a colon.', fields={}
)
_DATA = flags.DEFINE(
  cli.Folder(),
  'data',
  None,
  'Folder with the files of the benchmark: those of STS-B, SICK or TREC QA, or the '
  'JSONL files of your own.',
)
_OUT = flags.DEFINE(
  cli.Folder(),
  'out',
  None,
  'Folder for the answers, the summary and the pictures. Default: '
  '`checkpoints/runs/llm-` and the name of the config.',
)
_PART = cli.define_part('cells of an ablation', 'compute')
_ONLY = cli.define_only('cells of an ablation, such as `0_examples/cosine`')
_AGAIN = cli.define_again()
_DRAWING = Drawing(has_texts=False)


def main() -> None:
  config: Any = config_flag.get(_CONFIG)  # The study's `run` checks its fields.
  default = f'checkpoints/runs/llm-{config_flag.run_name(_CONFIG)}'
  out = _OUT.value or user_path(default)
  for flag in _PART, _ONLY, _AGAIN:
    if flag.present and 'ablation' not in config:
      raise UserError(f'--{flag.name} is for an ablation, which this config is not')
  # Imported here so that a mistyped flag is reported at once.
  from studies.llm import ablation, ablation_table, experiment, report

  where = f'the results are in {out}'
  if 'ablation' not in config:
    with _DRAWING.wishes():
      results: Any = experiment.run(config, out, _DATA.value)
    return cli.print_results(results, report.table, where, out)
  part = _PART.value
  results = ablation.run(
    config, out, _DATA.value, part, _ONLY.value, again=_AGAIN.value
  )
  cli.print_results(results, ablation_table.table, where, out, part)


if __name__ == '__main__':
  cli.run(main)
