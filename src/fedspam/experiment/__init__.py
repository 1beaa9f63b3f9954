"""An experiment as a configuration tells it: clients, a method, a start and a probe; run, recorded and summed up."""

from fedspam.experiment.making import Experiment, make
from fedspam.experiment.running import Outcome, new_folder, run

__all__ = ["Experiment", "Outcome", "make", "new_folder", "run"]
