"""Qwen2.5-7B-Instruct on STS-B, as in Fig. 6 of the paper.

  python -m launch.llm --config=configs/llm/qwen2_5_7b.py --data=STSB \\
      --config.model.weights=QWEN --config.mesh.model=4 --out=runs/qwen2_5_7b

QWEN is the user's own folder with config.json, tokenizer.json, tokenizer_config.json
and *.safetensors, as in Qwen/Qwen2.5-7B-Instruct.

Memory in bfloat16: 15.2 GB of weights and 56 KiB of cache per token, so 0.7 GB for 8
prompts of 1536 tokens: a batch of 4 prompts, and the copy that their answers continue.
`mesh.model` may be 1, 2 or 4 (28 query and 4 kv heads), and `mesh.data` splits the
prompts. A device holds

  mesh.model   weights   cache (data = 1)
  1            15.2 GB   0.7 GB
  2             7.6 GB   0.4 GB
  4             3.8 GB   0.2 GB
"""

from configs.llm import defaults
from zoo.llm.config_types import ExperimentConfig


def get_config(variant: str = '') -> ExperimentConfig:
  """The config of Qwen2.5-7B; for variants see the defaults."""
  config = defaults.get_config(variant)
  config.model.weights = 'Qwen2.5-7B-Instruct'
  config.model.dtype = 'bfloat16'
  config.lock()
  return config
