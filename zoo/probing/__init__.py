"""Probing: what a model has learned, from its predictions and from what is inside it.

The instruments find the algorithm that is nearest to the predictions, read and change
values inside a model, and compare models with theory where theory covers their task.
"""

from zoo.core.taps import TAP_KINDS as TAP_KINDS
from zoo.core.taps import Tap as Tap
from zoo.measure.intervals import Estimate as Estimate
from zoo.measure.table import Rows as Rows
from zoo.probing.beliefs import BeliefScore as BeliefScore
from zoo.probing.beliefs import one_step as one_step
from zoo.probing.beliefs import probe_beliefs as probe_beliefs
from zoo.probing.inside.activations import attention_maps as attention_maps
from zoo.probing.inside.activations import capture as capture
from zoo.probing.inside.activations import intermediates as intermediates
from zoo.probing.inside.activations import mean_attention as mean_attention
from zoo.probing.inside.activations import sites as sites
from zoo.probing.inside.attention_heads import Head as Head
from zoo.probing.inside.attention_heads import heads as heads
from zoo.probing.inside.attention_heads import prune as prune
from zoo.probing.inside.attribution import Attribution as Attribution
from zoo.probing.inside.attribution import attribution as attribution
from zoo.probing.inside.circuits import Circuit as Circuit
from zoo.probing.inside.circuits import CurvePoint as CurvePoint
from zoo.probing.inside.circuits import Edge as Edge
from zoo.probing.inside.circuits import circuit as circuit
from zoo.probing.inside.edits import Add as Add
from zoo.probing.inside.edits import Edit as Edit
from zoo.probing.inside.edits import Mean as Mean
from zoo.probing.inside.edits import Resample as Resample
from zoo.probing.inside.edits import Set as Set
from zoo.probing.inside.edits import Zero as Zero
from zoo.probing.inside.edits import edited as edited
from zoo.probing.inside.effects import Effect as Effect
from zoo.probing.inside.effects import Effects as Effects
from zoo.probing.inside.effects import effects as effects
from zoo.probing.inside.head_scores import HeadScore as HeadScore
from zoo.probing.inside.head_scores import head_scores as head_scores
from zoo.probing.inside.head_weights import copying_score as copying_score
from zoo.probing.inside.head_weights import ov as ov
from zoo.probing.inside.head_weights import qk as qk
from zoo.probing.inside.latents import LatentScore as LatentScore
from zoo.probing.inside.latents import latent_targets as latent_targets
from zoo.probing.inside.latents import probe_latents as probe_latents
from zoo.probing.inside.lens import Lens as Lens
from zoo.probing.inside.lens import lens as lens
from zoo.probing.inside.nodes import Node as Node
from zoo.probing.inside.paths import PathEffect as PathEffect
from zoo.probing.inside.paths import PathEffects as PathEffects
from zoo.probing.inside.paths import path_effect as path_effect
from zoo.probing.inside.paths import path_effects as path_effects
from zoo.probing.inside.reach import dead_sites as dead_sites
from zoo.probing.inside.task_vectors import TaskVector as TaskVector
from zoo.probing.inside.task_vectors import TaskVectors as TaskVectors
from zoo.probing.inside.task_vectors import task_vectors as task_vectors
from zoo.probing.interchange import Interchanged as Interchanged
from zoo.probing.interchange import interchange as interchange
from zoo.probing.nearest_algorithms.by_layer import LayerAlgorithms as LayerAlgorithms
from zoo.probing.nearest_algorithms.by_layer import algorithms as algorithms
from zoo.probing.nearest_algorithms.guesses import LearnedGuess as LearnedGuess
from zoo.probing.nearest_algorithms.guesses import learned_guess as learned_guess
from zoo.probing.nearest_algorithms.implicit import (
  implicit_algorithm as implicit_algorithm,
)
from zoo.probing.nearest_algorithms.sampled import Nearest as Nearest
from zoo.probing.nearest_algorithms.sampled import SampledAlgorithm as SampledAlgorithm
from zoo.probing.nearest_algorithms.sampled import (
  sampled_algorithm as sampled_algorithm,
)
from zoo.probing.nearest_algorithms.similarity import Alignment as Alignment
from zoo.probing.nearest_algorithms.similarity import alignment as alignment
from zoo.probing.nearest_strategies.mixtures import (
  LikelihoodMixture as LikelihoodMixture,
)
from zoo.probing.nearest_strategies.mixtures import NearestMixture as NearestMixture
from zoo.probing.nearest_strategies.mixtures import Strategies as Strategies
from zoo.probing.nearest_strategies.mixtures import strategies as strategies
from zoo.probing.nearest_strategies.shifts import TaskShift as TaskShift
from zoo.probing.nearest_strategies.shifts import task_shift as task_shift
from zoo.probing.report import baselines_of as baselines_of
from zoo.probing.report import probe as probe
from zoo.probing.scores import risks as risks
from zoo.probing.steer import Steered as Steered
from zoo.probing.steer import steer as steer
from zoo.probing.validate import Checked as Checked
from zoo.probing.validate import InstrumentCheck as InstrumentCheck
from zoo.probing.validate import Planted as Planted
from zoo.probing.validate import null_models as null_models


def __dir__() -> list[str]:
  # The public names of these rooms stand here. The rooms are in globals since they are
  # imported.
  rooms = {
    'beliefs',
    'checks',
    'context',
    'inside',
    'linear_maps',
    'nearest_algorithms',
    'nearest_strategies',
    'report',
    'scores',
    'validate',
    'verdicts',
  }
  return sorted(name for name in {*globals()} - rooms if not name.startswith('_'))
