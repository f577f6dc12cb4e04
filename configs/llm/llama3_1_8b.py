"""Llama-3.1-8B-Instruct on STS-B, as in Fig. 6 of the paper.

  python -m launch.llm --config=configs/llm/llama3_1_8b.py --data=STSB \\
      --config.model.weights=LLAMA --config.mesh.model=4 --out=runs/llama3_1_8b

LLAMA is the user's own folder with config.json, tokenizer.json, tokenizer_config.json
and *.safetensors, as in meta-llama/Llama-3.1-8B-Instruct.

Memory in bfloat16: 16.1 GB of weights and 128 KiB of cache per token, so 1.6 GB for 8
prompts of 1536 tokens: a batch of 4 prompts, and the copy that their answers continue.
`mesh.model` may be 1, 2, 4 or 8 (8 kv heads), and `mesh.data` splits the prompts. A
device holds

  mesh.model   weights   cache (data = 1)
  1            16.1 GB   1.6 GB
  2             8.0 GB   0.8 GB
  4             4.0 GB   0.4 GB
  8             2.0 GB   0.2 GB
"""

from configs.llm import defaults
from zoo.llm.config_types import ExperimentConfig


def get_config(variant: str = '') -> ExperimentConfig:
  """The config of Llama-3.1-8B; for variants see the defaults."""
  config = defaults.get_config(variant)
  config.model.weights = 'Llama-3.1-8B-Instruct'
  config.model.dtype = 'bfloat16'
  config.lock()
  return config
