"""An experiment that a configuration describes: built, run, recorded and summarized."""

from fedspam.app.experiment.build import Experiment as Experiment
from fedspam.app.experiment.build import make as make
from fedspam.app.experiment.execute import ExperimentOutcome as ExperimentOutcome
from fedspam.app.experiment.execute import run as run
