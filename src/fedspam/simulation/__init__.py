"""Simulations: any number of rounds, seeds and step sizes in one compiled program, recorded and resumable."""

from fedspam._internal.program_folder import keep_programs as keep_programs
from fedspam.simulation.evaluation import Evaluation as Evaluation, Named as Named
from fedspam.simulation.host_data import Stored as Stored
from fedspam.simulation.personal import fine_tune as fine_tune, personal_models as personal_models
from fedspam.simulation.records import Keep as Keep
from fedspam.simulation.run import Run as Run, restore as restore, simulate as simulate
from fedspam.simulation.status import Status as Status
from fedspam.simulation.stopping import Patience as Patience, Target as Target, Watch as Watch
from fedspam.simulation.sweep import simulate_many as simulate_many
