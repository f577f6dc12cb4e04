"""Training dynamics on the exact risk: flows, plateaus, Hessians."""

from zoo.theory.dynamics.curvature import Curvature as Curvature
from zoo.theory.dynamics.curvature import curvature as curvature
from zoo.theory.dynamics.flow import Trajectory as Trajectory
from zoo.theory.dynamics.flow import descent as descent
from zoo.theory.dynamics.flow import gradient_flow as gradient_flow
from zoo.theory.dynamics.flow import gradient_flows as gradient_flows
from zoo.theory.dynamics.guess import guess_time as guess_time
from zoo.theory.dynamics.heads import LinearHeads as LinearHeads
from zoo.theory.dynamics.heads import merged_heads as merged_heads
from zoo.theory.dynamics.heads import separate_heads as separate_heads
from zoo.theory.dynamics.plateaus import plateaus as plateaus
