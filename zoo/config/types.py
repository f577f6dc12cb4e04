"""The types of configs, which config files can import without the rest of zoo."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
  from zoo.config.optimizers import OptimizerConfig

  class Section(Protocol):
    """A part of a config that names a class; its other fields are hyper-parameters."""

    name: str

    def __getattr__(self, field: str) -> Any: ...
    def __setattr__(self, field: str, value: Any) -> None: ...
    def __contains__(self, field: str) -> bool: ...
    def get(self, field: str, default: Any = None) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    def update(self, fields: Mapping[str, object], /) -> None: ...

  class ObjectiveConfig(Protocol):
    name: str
    positions: str

    def get(self, field: str, default: Any = None) -> Any: ...

  class TrainConfig(Protocol):
    num_steps: int
    batch_size: int
    num_parts: int
    compute_dtype: str
    log_every: int
    matmul_precision: str

    def get(self, field: str, default: Any = None) -> Any: ...
    def get_ref(self, field: str) -> Any: ...

  class MeshConfig(Protocol):
    data: int
    model: int
    fsdp: bool
    slices: int
    heartbeat_timeout: int
    start_timeout: int

    def get(self, field: str, default: Any = None) -> Any: ...

  class CheckpointConfig(Protocol):
    every: int
    keep: int

    def get(self, field: str, default: Any = None) -> Any: ...

  class EvalConfig(Protocol):
    every: int
    num_batches: int
    num_compared: int

    def get(self, field: str, default: Any = None) -> Any: ...

  class AnyConfig(Protocol):
    """An ml_collections.ConfigDict of any program that computes on a mesh."""

    seed: int
    mesh: MeshConfig

    def __getitem__(self, field: str) -> Any: ...
    def __setitem__(self, field: str, value: Any) -> None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def lock(self) -> Any: ...
    def unlocked(self) -> contextlib.AbstractContextManager[None]: ...

  class Config(AnyConfig, Protocol):
    """The config of a training run, with the fields of configs/defaults.py."""

    model: Section
    task: Section
    objective: ObjectiveConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    checkpoint: CheckpointConfig
    eval: EvalConfig
else:
  from ml_collections import ConfigDict as Config

  AnyConfig = Section = Config
