"""Simulations: any number of rounds, seeds and step sizes in one compiled program, recorded and resumable."""

from fedspam.simulation.evaluation import Evaluation
from fedspam.simulation.records import Keep
from fedspam.simulation.run import Run, restore, simulate, simulate_many
from fedspam.simulation.stopping import Target, Watch

__all__ = ["Evaluation", "Keep", "Run", "Target", "Watch", "restore", "simulate", "simulate_many"]
