"""Probing: what a model has learned, from its predictions and from what is inside it.

The instruments find the algorithm that is nearest to the predictions, read and change
values inside a model, and compare models with theory where theory covers their task.
"""

import types

from zoo.core.taps import TAP_KINDS as TAP_KINDS
from zoo.core.taps import Tap as Tap
from zoo.measure.intervals import Estimate as Estimate
from zoo.measure.table import Rows as Rows
from zoo.probing.across import AcrossSeeds as AcrossSeeds
from zoo.probing.across import Matched as Matched
from zoo.probing.across import across_seeds as across_seeds
from zoo.probing.activations import attention_maps as attention_maps
from zoo.probing.activations import capture as capture
from zoo.probing.activations import intermediates as intermediates
from zoo.probing.activations import mean_attention as mean_attention
from zoo.probing.activations import sites as sites
from zoo.probing.attention_heads import Head as Head
from zoo.probing.attention_heads import HeadScore as HeadScore
from zoo.probing.attention_heads import copying_score as copying_score
from zoo.probing.attention_heads import head_scores as head_scores
from zoo.probing.attention_heads import heads as heads
from zoo.probing.attention_heads import ov as ov
from zoo.probing.attention_heads import prune as prune
from zoo.probing.attention_heads import qk as qk
from zoo.probing.beliefs import BeliefScore as BeliefScore
from zoo.probing.beliefs import probe_beliefs as probe_beliefs
from zoo.probing.beliefs import rival_statistics as rival_statistics
from zoo.probing.circuits import Circuit as Circuit
from zoo.probing.circuits import CurvePoint as CurvePoint
from zoo.probing.circuits import Edge as Edge
from zoo.probing.circuits import circuit as circuit
from zoo.probing.compare import Alignment as Alignment
from zoo.probing.compare import TaskShift as TaskShift
from zoo.probing.compare import alignment as alignment
from zoo.probing.compare import risks as risks
from zoo.probing.compare import task_shift as task_shift
from zoo.probing.development import OverTraining as OverTraining
from zoo.probing.development import StepMean as StepMean
from zoo.probing.development import StepReading as StepReading
from zoo.probing.development import over_training as over_training
from zoo.probing.edit import Add as Add
from zoo.probing.edit import Edit as Edit
from zoo.probing.edit import Mean as Mean
from zoo.probing.edit import Resample as Resample
from zoo.probing.edit import Set as Set
from zoo.probing.edit import Zero as Zero
from zoo.probing.edit import edited as edited
from zoo.probing.graph import Node as Node
from zoo.probing.interchanges import Interchanged as Interchanged
from zoo.probing.interchanges import interchange as interchange
from zoo.probing.jacobians import JacobianLens as JacobianLens
from zoo.probing.jacobians import JacobianLoss as JacobianLoss
from zoo.probing.jacobians import jacobian_lens as jacobian_lens
from zoo.probing.latents import LatentScore as LatentScore
from zoo.probing.latents import latent_targets as latent_targets
from zoo.probing.latents import probe_latents as probe_latents
from zoo.probing.learning_coefficient import LearningCoefficient as LearningCoefficient
from zoo.probing.learning_coefficient import (
  local_learning_coefficient as local_learning_coefficient,
)
from zoo.probing.logit_attribution import Attribution as Attribution
from zoo.probing.logit_attribution import attribution as attribution
from zoo.probing.logit_lens import Lens as Lens
from zoo.probing.logit_lens import lens as lens
from zoo.probing.nearest.by_layer import LayerAlgorithms as LayerAlgorithms
from zoo.probing.nearest.by_layer import layer_algorithms as layer_algorithms
from zoo.probing.nearest.guess import LearnedGuess as LearnedGuess
from zoo.probing.nearest.guess import learned_guess as learned_guess
from zoo.probing.nearest.implicit import (
  implicit_algorithm as implicit_algorithm,
)
from zoo.probing.nearest.mixtures import (
  LikelihoodMixture as LikelihoodMixture,
)
from zoo.probing.nearest.mixtures import NearestMixture as NearestMixture
from zoo.probing.nearest.mixtures import Strategies as Strategies
from zoo.probing.nearest.mixtures import strategies as strategies
from zoo.probing.nearest.sampled import FittedAlgorithm as FittedAlgorithm
from zoo.probing.nearest.sampled import SampledAlgorithm as SampledAlgorithm
from zoo.probing.nearest.sampled import (
  sampled_algorithm as sampled_algorithm,
)
from zoo.probing.nearest.telling import Elimination as Elimination
from zoo.probing.nearest.telling import Standing as Standing
from zoo.probing.nearest.telling import TellingPair as TellingPair
from zoo.probing.nearest.telling import TellingPrompts as TellingPrompts
from zoo.probing.nearest.telling import elimination as elimination
from zoo.probing.nearest.telling import telling_prompts as telling_prompts
from zoo.probing.patch import Effect as Effect
from zoo.probing.patch import Effects as Effects
from zoo.probing.patch import effects as effects
from zoo.probing.path import PathEffect as PathEffect
from zoo.probing.path import PathEffects as PathEffects
from zoo.probing.path import path_effect as path_effect
from zoo.probing.path import path_effects as path_effects
from zoo.probing.reach import dead_sites as dead_sites
from zoo.probing.report import baselines_of as baselines_of
from zoo.probing.report import probe as probe
from zoo.probing.steering import Steered as Steered
from zoo.probing.steering import steer as steer
from zoo.probing.task_vector import TaskVector as TaskVector
from zoo.probing.task_vector import TaskVectors as TaskVectors
from zoo.probing.task_vector import task_vectors as task_vectors
from zoo.probing.validate import Checked as Checked
from zoo.probing.validate import InstrumentCheck as InstrumentCheck
from zoo.probing.validate import Planted as Planted
from zoo.probing.validate import null_models as null_models


def __dir__() -> list[str]:
  # The modules of this package are in globals since they are imported.
  return sorted(
    name
    for name, value in globals().items()
    if not name.startswith('_') and not isinstance(value, types.ModuleType)
  )
