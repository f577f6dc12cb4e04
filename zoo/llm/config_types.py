"""The types of the experiments' configs, which config files import without the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
  from zoo.config.types import AnyConfig
  from zoo.llm.guesses import GuessConfig
  from zoo.llm.readouts import ReadoutConfig

  class ModelConfig(Protocol):
    weights: str
    dtype: str
    batch_size: int

  class EncoderConfig(Protocol):
    weights: str

  class BenchmarkConfig(Protocol):
    name: str
    instruction: str
    inputs: tuple[str, ...]
    label: str
    low: float | None
    high: float | None
    sha256: str

  class PromptsConfig(Protocol):
    num_prompts: int
    num_examples: int
    context_split: str

  class ExperimentConfig(AnyConfig, Protocol):
    """An ml_collections.ConfigDict with the fields of configs/llm/defaults.py."""

    model: ModelConfig
    encoder: EncoderConfig
    benchmark: BenchmarkConfig
    guess: GuessConfig
    prompts: PromptsConfig
    readouts: ReadoutConfig

  class AblationSection(Protocol):
    benchmarks: tuple[str, ...]
    guesses: tuple[str, ...]
    noise: tuple[float, ...]
    class_noise: tuple[float, ...]
    num_examples: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]: ...

  class AblationConfig(AnyConfig, Protocol):
    """An ml_collections.ConfigDict with the fields of configs/llm/ablation.py."""

    benchmarks: dict[str, BenchmarkConfig]
    ablation: AblationSection

else:
  from ml_collections import ConfigDict

  ExperimentConfig = AblationConfig = ConfigDict
