"""An experiment as a configuration tells it: clients, a method, a start and a probe; run, recorded and summed up."""

from fedspam.app.experiment.build import Experiment, make
from fedspam.app.experiment.execute import ExperimentOutcome, run

__all__ = ["Experiment", "ExperimentOutcome", "make", "run"]
