"""Multi-head LSA with 512 features and 544 heads: 573 million parameters.

  python -m launch.aot --config=configs/scale.py --topology=auto
  python -m launch.main --config=configs/scale.py --distributed

This size has not been trained yet: the numbers come from theory, smaller models and the
compiler.
With d = C = 512 and w* = [2, …, 2] the risk is 2560 before any training, 256.2654 at
the infimum for a fixed guess of 0, and 256.2498 for one step of gradient descent from
w*. The gap of Theorem 1 (arXiv 2512.04268) shrinks as 1/(dC), but the exact risk still
shows it.

The hyper-parameters are scaled from those of d = 10. The initial scale ∝ d^(-5/8) keeps
the ratio of the first predictions' variance to that of the labels: the variance of f
grows as d⁶ scale⁸, that of the labels as d. The learning rate is ∝ 1/d, since a matrix
product sums over d entries, each changed by up to the rate in a step. With these rules
smaller models end above their infima by 0.6 % (d = C = 64, 65 heads, 1000 steps on the
exact risk), 3.9 % (the same, 2000 steps on sampled prompts) and 3.1 or 1.2 % (d = C =
32, 33 heads, 2000 or 6000 steps), with batches as small relative to e² as here, B C /
e² = 4.

Memory of a step per chip, by launch.aot with libtpu 0.0.42.1; docs/scaling.md has the
other programs and the traffic:

  v5e:2x2    7.5 of 15.75 GiB, of which the state is 1.6
  v5e:4x8    0.9 of 15.75 GiB, of which the state is 0.2

513 = d + 1 heads are as good as any more, and no power of two divides an axis of their
arrays (513 = 27 · 19). 544 is the next number that 32 devices divide.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import multi_head_lsa


def get_config() -> ConfigDict:
  """The config of multi_head_lsa at d = 512."""
  config: Any = multi_head_lsa.get_config()
  config.task.num_features = config.task.context_length = 512
  config.model.num_heads = 544
  config.model.init_scale = 0.0085  # 0.1 (10 / d)^(5/8)
  config.optimizer.learning_rate = 1e-4  # 5e-3 · 10 / d
  config.mesh.model = 4  # the chips of a TPU host, so that heads stay on one host
  config.mesh.fsdp = True
  config.train.log_every = 250  # the exact risk takes 3 s on one core of the host
  # A checkpoint takes 6.9 GB, and a pod may be pre-empted at any time.
  config.checkpoint.every, config.checkpoint.keep = 500, 2
  config.eval.every, config.eval.num_batches = 500, 4
  return config
