r"""The methods, one file each; every file ends with the rows of its methods in the registry, which state their costs.

Arguments that mean the same in every method are explained here, and in a method only where it differs:

- `cohort_size`: B, the number of clients that a round asks; None for all of them, where a method allows it.
- `step_size`: :math:`\gamma_k`, of the prox or of the server's step.
- `fresh_weight`: :math:`p_k` in (0, 1], the weight of the fresh gradient in the estimate.
- `local_steps`: m, the gradient steps of a client, each on a minibatch of its own.
- `local_rate`: :math:`\eta_k`, the step size of these steps.
- `server_step_size`: :math:`\eta_s`, by which the server multiplies the mean move of the clients.
- `probability`: p in [0, 1], that of a round which asks everyone, or that communicates.
- `solver`: how a client answers the prox; `LBFGS`, the default, needs no constant of the problem.

A `ScheduleLike` is a number, one value per round, or a schedule (`fedspam.methods.schedules`).
"""

from fedspam.methods._central import Adam as Adam, Momentum as Momentum, Plain as Plain
from fedspam.methods._local import Epochs as Epochs
from fedspam.methods._method import (
    Given as Given,
    Method as Method,
    Start as Start,
    StartLike as StartLike,
    WarmStart as WarmStart,
    Zero as Zero,
)
from fedspam.methods._registry import (
    METHODS as METHODS,
    Cost as Cost,
    Entry as Entry,
    Scales as Scales,
    register as register,
)
from fedspam.methods._template import Factored as Factored
from fedspam.methods.adaptive_s_dane import (
    SearchingDane as SearchingDane,
    adaptive_acc_s_dane as adaptive_acc_s_dane,
    adaptive_s_dane as adaptive_s_dane,
)
from fedspam.methods.auto import Auto as Auto, auto as auto
from fedspam.methods.auto_steps import AutoSteps as AutoSteps, auto_steps as auto_steps
from fedspam.methods.buffered import Buffered as Buffered, buffered as buffered
from fedspam.methods.ce_lsgd import bvr_l_sgd as bvr_l_sgd, ce_lsgd as ce_lsgd
from fedspam.methods.dane import dane as dane, dane_plus as dane_plus, feddane as feddane
from fedspam.methods.dasha_pp import DashaPP as DashaPP, dasha_pp as dasha_pp
from fedspam.methods.delta_sgd import delta_sgd as delta_sgd
from fedspam.methods.ditto import Ditto as Ditto, ditto as ditto
from fedspam.methods.ef21_pp import EF21PP as EF21PP, ef21_pp as ef21_pp
from fedspam.methods.extragradient import AccExtragradient as AccExtragradient, acc_extragradient as acc_extragradient
from fedspam.methods.fedacg import FedACG as FedACG, fedacg as fedacg
from fedspam.methods.fedavg import fedavg as fedavg, fedavgm as fedavgm
from fedspam.methods.fedcm import (
    FedCM as FedCM,
    ScaffoldM as ScaffoldM,
    fedcm as fedcm,
    fedcm_vr as fedcm_vr,
    scaffold_m as scaffold_m,
    scaffold_m_vr as scaffold_m_vr,
)
from fedspam.methods.feddyn import FedDyn as FedDyn, feddyn as feddyn
from fedspam.methods.fedexp import Extrapolated as Extrapolated, fedexp as fedexp, fedexprox as fedexprox
from fedspam.methods.fednova import FedNova as FedNova, fednova as fednova
from fedspam.methods.fedopt import (
    FedOpt as FedOpt,
    fedadagrad as fedadagrad,
    fedadam as fedadam,
    fedopt as fedopt,
    fedyogi as fedyogi,
)
from fedspam.methods.fedper import FedPer as FedPer, fedper as fedper
from fedspam.methods.fedprox import fedprox as fedprox
from fedspam.methods.fedred import FedRed as FedRed, fedred as fedred, fedred_memory as fedred_memory
from fedspam.methods.fedsps import fedsps as fedsps
from fedspam.methods.locodl import LoCoDL as LoCoDL, locodl as locodl
from fedspam.methods.mime import (
    Mime as Mime,
    MimeLite as MimeLite,
    mime as mime,
    mime_lite as mime_lite,
    mime_lite_mvr as mime_lite_mvr,
    mime_mvr as mime_mvr,
)
from fedspam.methods.mvr import mvr as mvr
from fedspam.methods.olga import Olga as Olga, olga as olga
from fedspam.methods.padamfed import PAdaMFed as PAdaMFed, padamfed as padamfed
from fedspam.methods.page import page as page, sarah as sarah
from fedspam.methods.proxy_prox import ProxyProx as ProxyProx, proxy_prox as proxy_prox
from fedspam.methods.rg import rg_saga as rg_saga, rg_svrg as rg_svrg
from fedspam.methods.s_dane import StableDane as StableDane, acc_s_dane as acc_s_dane, s_dane as s_dane
from fedspam.methods.saber import saber as saber, saber_partial as saber_partial
from fedspam.methods.scaffnew import ScaffNew as ScaffNew, scaffnew as scaffnew
from fedspam.methods.scaffold import Scaffold as Scaffold, scaffold as scaffold
from fedspam.methods.schedules import ScheduleLike as ScheduleLike
from fedspam.methods.spam import Spam as Spam, spam as spam
from fedspam.methods.spam_pp import SpamPP as SpamPP, spam_pp as spam_pp, spam_ppa as spam_ppa
from fedspam.methods.sppm import CohortProx as CohortProx, sppm as sppm, sppm_as as sppm_as
from fedspam.methods.storm import Storm as Storm, meta_storm as meta_storm, storm as storm, storm_plus as storm_plus
from fedspam.methods.svrp import Svrp as Svrp, catalyzed_svrp as catalyzed_svrp, svrp as svrp
from fedspam.methods.svrs import AccSvrs as AccSvrs, acc_svrs as acc_svrs, svrs as svrs
