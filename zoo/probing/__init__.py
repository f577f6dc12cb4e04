"""Probing: compares what a model has learned with what theory says it could learn."""

from zoo.core.taps import Tap as Tap
from zoo.probing.activations import attention_maps as attention_maps
from zoo.probing.activations import capture as capture
from zoo.probing.activations import intermediates as intermediates
from zoo.probing.activations import mean_attention as mean_attention
from zoo.probing.activations import sites as sites
from zoo.probing.algorithms import LayerAlgorithms as LayerAlgorithms
from zoo.probing.algorithms import algorithms as algorithms
from zoo.probing.attention_heads import Head as Head
from zoo.probing.attention_heads import heads as heads
from zoo.probing.attention_heads import prune as prune
from zoo.probing.guesses import LearnedGuess as LearnedGuess
from zoo.probing.guesses import learned_guess as learned_guess
from zoo.probing.implicit import implicit_algorithm as implicit_algorithm
from zoo.probing.lens import Lens as Lens
from zoo.probing.lens import lens as lens
from zoo.probing.nearest import SampledAlgorithm as SampledAlgorithm
from zoo.probing.nearest import sampled_algorithm as sampled_algorithm
from zoo.probing.report import probe as probe
from zoo.probing.report import references as references
from zoo.probing.scores import risks as risks
from zoo.probing.shifts import TaskShift as TaskShift
from zoo.probing.shifts import task_shift as task_shift
from zoo.probing.similarity import Alignment as Alignment
from zoo.probing.similarity import alignment as alignment
from zoo.probing.summaries import summary as summary
