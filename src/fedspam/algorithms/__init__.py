"""The methods, one file each; every file ends with the method's row of the registry."""

from fedspam.algorithms._algorithm import Algorithm, Given, MomentumState, Start, WarmStart, Zero
from fedspam.algorithms._factored import Factored
from fedspam.algorithms._registry import METHODS, Cost, Method, Scales, register
from fedspam.algorithms.spam import Spam, spam
from fedspam.algorithms.spam_pp import spam_pp, spam_ppa

__all__ = [
    "METHODS",
    "Algorithm",
    "Cost",
    "Factored",
    "Given",
    "Method",
    "MomentumState",
    "Scales",
    "Spam",
    "Start",
    "WarmStart",
    "Zero",
    "register",
    "spam",
    "spam_pp",
    "spam_ppa",
]
