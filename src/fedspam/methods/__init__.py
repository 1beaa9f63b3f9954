"""The methods, one file each; every file ends with the method's row of the registry."""

from fedspam.methods._algorithm import Algorithm, Given, Start, WarmStart, Zero
from fedspam.methods._central import Adam, Momentum, Plain
from fedspam.methods._registry import METHODS, Cost, Method, Scales, register
from fedspam.methods._template import Factored
from fedspam.methods.auto import Auto, auto
from fedspam.methods.ce_lsgd import bvr_l_sgd, ce_lsgd
from fedspam.methods.dane import dane, dane_plus, feddane
from fedspam.methods.fedavg import fedavg
from fedspam.methods.feddyn import FedDyn, feddyn
from fedspam.methods.fedopt import FedOpt, fedadagrad, fedadam, fedavgm, fedyogi
from fedspam.methods.fedprox import fedprox
from fedspam.methods.fedred import FedRed, fedred
from fedspam.methods.mime import Mime, mime, mime_mvr
from fedspam.methods.mime_lite import MimeLite, mime_lite, mime_lite_mvr
from fedspam.methods.mvr import mvr
from fedspam.methods.page import page, sarah
from fedspam.methods.rg import rg_saga, rg_svrg
from fedspam.methods.s_dane import StableDane, acc_s_dane, s_dane
from fedspam.methods.saber import saber, saber_partial
from fedspam.methods.scaffnew import ScaffNew, scaffnew
from fedspam.methods.scaffold import Scaffold, scaffold
from fedspam.methods.spam import Spam, spam
from fedspam.methods.spam_pp import SpamPP, spam_pp, spam_ppa
from fedspam.methods.sppm import sppm
from fedspam.methods.storm import Storm, meta_storm, storm, storm_plus
from fedspam.methods.svrp import Svrp, catalyzed_svrp, svrp
from fedspam.methods.svrs import AccSvrs, acc_svrs, svrs

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
    "Plain",
    "ScaffNew",
    "Scaffold",
    "Scales",
    "Spam",
    "SpamPP",
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
