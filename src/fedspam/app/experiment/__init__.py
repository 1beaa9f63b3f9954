"""An experiment that a configuration describes: built, run, recorded and summarized."""

from fedspam.app.experiment.build import Experiment as Experiment, make as make
from fedspam.app.experiment.execute import ExperimentOutcome as ExperimentOutcome, run as run
