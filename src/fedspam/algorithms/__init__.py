"""The methods, one file each; every file ends with the method's row of the registry."""

from fedspam.algorithms._algorithm import Algorithm, Given, MomentumState, Start, WarmStart, Zero
from fedspam.algorithms._central import Adam, Momentum, Plain
from fedspam.algorithms._factored import Factored
from fedspam.algorithms._registry import METHODS, Cost, Method, Scales, register
from fedspam.algorithms.auto import Auto, auto
from fedspam.algorithms.ce_lsgd import bvr_l_sgd, ce_lsgd
from fedspam.algorithms.dane import dane, dane_plus, feddane
from fedspam.algorithms.fedavg import fedavg
from fedspam.algorithms.feddyn import FedDyn, feddyn
from fedspam.algorithms.fedopt import FedOpt, fedadagrad, fedadam, fedavgm, fedyogi
from fedspam.algorithms.fedprox import fedprox
from fedspam.algorithms.fedred import FedRed, fedred
from fedspam.algorithms.mime import Mime, mime, mime_mvr
from fedspam.algorithms.mime_lite import MimeLite, mime_lite, mime_lite_mvr
from fedspam.algorithms.mvr import mvr
from fedspam.algorithms.page import page, sarah
from fedspam.algorithms.rg import rg_saga, rg_svrg
from fedspam.algorithms.s_dane import StableDane, acc_s_dane, s_dane
from fedspam.algorithms.saber import saber, saber_partial
from fedspam.algorithms.scaffnew import ScaffNew, scaffnew
from fedspam.algorithms.scaffold import Scaffold, scaffold
from fedspam.algorithms.spam import Spam, spam
from fedspam.algorithms.spam_pp import spam_pp, spam_ppa
from fedspam.algorithms.sppm import sppm
from fedspam.algorithms.storm import Storm, meta_storm, storm, storm_plus
from fedspam.algorithms.svrp import Svrp, catalyzed_svrp, svrp
from fedspam.algorithms.svrs import AccSvrs, acc_svrs, svrs

__all__ = [
    "METHODS",
    "AccSvrs",
    "Adam",
    "Algorithm",
    "Auto",
    "Cost",
    "Factored",
    "FedDyn",
    "FedOpt",
    "FedRed",
    "Given",
    "Method",
    "Mime",
    "MimeLite",
    "Momentum",
    "MomentumState",
    "Plain",
    "ScaffNew",
    "Scaffold",
    "Scales",
    "Spam",
    "StableDane",
    "Start",
    "Storm",
    "Svrp",
    "WarmStart",
    "Zero",
    "acc_s_dane",
    "acc_svrs",
    "auto",
    "bvr_l_sgd",
    "catalyzed_svrp",
    "ce_lsgd",
    "dane",
    "dane_plus",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "feddane",
    "feddyn",
    "fedprox",
    "fedred",
    "fedyogi",
    "meta_storm",
    "mime",
    "mime_lite",
    "mime_lite_mvr",
    "mime_mvr",
    "mvr",
    "page",
    "register",
    "rg_saga",
    "rg_svrg",
    "s_dane",
    "saber",
    "saber_partial",
    "sarah",
    "scaffnew",
    "scaffold",
    "spam",
    "spam_pp",
    "spam_ppa",
    "sppm",
    "storm",
    "storm_plus",
    "svrp",
    "svrs",
]
