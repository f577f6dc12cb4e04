"""The defaults of all configs of the language-model experiment.

`FIELDS` of zoo/llm/config.py has each field with its range and its meaning.
"""

from typing import Any

from configs.llm import benchmarks
from zoo import UserError
from zoo.core.errors import check_name
from zoo.llm.config import Config, default_config


def get_config(variant: str = '') -> Config:
  """The experiment of Fig. 6 (arXiv 2512.04268, appendix C.3), without a model.

  The variant is the name of a published benchmark, `smoke`, or both, joined by a comma;
  `smoke` has four prompts of two examples each. Context examples are sampled from
  train, as in the paper, whose guess network fits them far better than the query. With
  `dev` the network was trained on neither.
  """
  name, is_smoke = _read_variant(variant)
  config: Any = default_config()
  config.benchmark.update(benchmarks.section(name))
  prompts = config.prompts
  if name == 'trec_qa':
    prompts.num_prompts = 68  # all questions of test
  if is_smoke:
    prompts.num_prompts, prompts.num_examples = 4, 2
    config.readouts.max_new_tokens = 20
  return config


def _read_variant(variant: str) -> tuple[str, bool]:
  """The benchmark of a variant, and whether the variant is a smoke test."""
  names = [part for part in variant.split(',') if part]
  for part in names:
    check_name('variant', part, (*benchmarks.BENCHMARKS, 'smoke'))
  chosen = [part for part in names if part != 'smoke']
  if len(chosen) > 1:
    raise UserError(f'the variant {variant!r} of the config has two benchmarks')
  return chosen[0] if chosen else 'stsb', 'smoke' in names
