"""Does more leak than epsilon says? An empirical membership audit of `Privacy` in twelve settings.

    python benchmarks/audit.py [--runs 2000] [--settings 0 1 ...]

Two worlds: in one, client 0 sends the reply that shows it best; in the other, its replies are replaced by zeros. A
server that knows everything else sees what the setting shows it, in so many runs of each world, and guesses which world
it is, by the sum of all that it saw along the direction of that reply, above a threshold that other runs have chosen.
Hits and false alarms give a lower bound of epsilon, by Clopper and Pearson, which is too high in 5 of 100 audits:

    epsilon >= log((hits - delta) / false alarms).

It must not be above the epsilon that `Privacy` reports. Clipping, noise and the fixed-point words are the library's
own; only the messages are left out. A sum that clients refuse shows nothing. Jagielski, Ullman, Oprea: Auditing
differentially private machine learning, NeurIPS 2020.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from scipy.stats import beta

from fedspam.flower.privacy import masks
from fedspam.flower.privacy.differential import Privacy
from fedspam.flower.privacy.secure_client import SecureSum

DELTA, CONFIDENCE, TRIAL = 1e-5, 0.95, 500  # runs of each world that choose the threshold


@dataclass(frozen=True)
class Setting:
    """What is configured, and what the server does and sees."""

    name: str
    privacy: Privacy
    participations: int = 1  # covered replies of client 0 that the server asks for
    in_sum: int = 1  # clients in a sum
    reply: float = 1.0  # norm of what client 0 would send, in units of the bound
    dimension: int = 1
    dtype: type = np.float64
    last_bits: bool = False  # the server looks at the rest of each number modulo the noise's own step
    invented: bool = False  # all other clients are the server's, and add no noise


def private(multiplier: float, least: int, summed: bool = True, bits: int = 32, **others: int) -> Privacy:
    secure = SecureSum(least=max(least, 3), fraction_bits=bits) if summed else None
    return Privacy(1.0, multiplier, least, secure=secure, **others)


SETTINGS = (
    Setting("sum of 3, once", private(1.0, 3), in_sum=3),
    Setting("sum of 3, 4 rounds", private(2.0, 3), 4, 3),
    Setting("sum of 30, 20 rounds", private(4.0, 30), 20, 30),
    Setting("sum on the coarsest grid", private(1.0, 4, bits=5), in_sum=4),
    Setting("single replies, float32", private(4.0, 4, summed=False), 4, dtype=np.float32),
    Setting("single replies, bfloat16", private(1.0, 1, summed=False), dtype=ml_dtypes.bfloat16),
    Setting("single replies, their last bits", private(1.0, 1, summed=False), last_bits=True),
    Setting("hostile: loses all but least", private(1.5, 7), 2, 7),
    Setting("hostile: asks 3 where 30 share the noise", private(4.0, 30), 20, 3),
    Setting("hostile: invents all other clients", private(8.0, 4), 2, 4, invented=True),
    Setting("hostile: a model that explodes gradients", private(1.0, 3), in_sum=3, reply=1e9, dimension=100),
    Setting("hostile: asks 40 times where 4 are allowed", private(2.0, 3, participations=4), 40, 3),
)


def seen(setting: Setting, runs: int, present: bool) -> np.ndarray:
    """What the server has learned after each run: its sum along the direction of client 0's reply."""
    privacy, limit = setting.privacy, setting.privacy.participations
    times = setting.participations if limit is None else min(limit, setting.participations)  # it refuses the others
    if privacy.secure is not None and setting.in_sum < privacy.secure.needed(setting.in_sum):
        return np.zeros(runs)  # no client unmasks such a sum
    size, shape = setting.dimension, (runs, times, setting.dimension)
    direction = np.full(size, 1 / math.sqrt(size))
    blank = np.zeros(shape, setting.dtype)  # zeros need no clipping, so that one call makes the noise of all runs
    noise = lambda: privacy.protect({"reply": blank})["reply"]
    if present:
        sent = (setting.reply * privacy.bound * direction).astype(setting.dtype)
        first = np.array([privacy.protect({"reply": sent})["reply"] for _ in range(runs * times)]).reshape(shape)
    else:
        first = noise()
    if privacy.secure is None:
        replies = first.astype(np.float64)
        if setting.last_bits:
            return np.mod(replies, privacy.grid).sum((1, 2))
        return (replies @ direction).sum(1)
    bits, count = privacy.secure.fraction_bits, setting.in_sum
    others = 0 if setting.invented else count - 1
    words = sum((masks.to_fixed(noise(), bits, count) for _ in range(others)), masks.to_fixed(first, bits, count))
    return (masks.to_floats(words, bits) @ direction).sum(1)


def bound(hits: int, alarms: int, runs: int) -> float:
    """The lower bound of epsilon from hits and false alarms, each of them off with half of the risk."""
    risk = (1 - CONFIDENCE) / 2
    least = float(beta.ppf(risk, hits, runs - hits + 1)) if hits else 0.0
    most = float(beta.ppf(1 - risk, alarms + 1, runs - alarms)) if alarms < runs else 1.0
    return max(0.0, math.log((least - DELTA) / most)) if least > DELTA else 0.0


def audited(setting: Setting, runs: int, worlds: Callable[..., np.ndarray] = seen) -> float:
    """The empirical lower bound of epsilon in a setting."""
    trial = worlds(setting, TRIAL, True), worlds(setting, TRIAL, False)
    with_it, without = worlds(setting, runs, True), worlds(setting, runs, False)

    def score(sign: float, threshold: float, present: np.ndarray, absent: np.ndarray) -> float:
        count = lambda found: int(np.count_nonzero(sign * found > sign * threshold))
        # the neighbors change their roles as well
        return bound(count(present), count(absent), len(present))

    values = np.unique(np.concatenate(trial))
    middles = np.append(values[:1], (values[1:] + values[:-1]) / 2)  # at a value itself the next draw may be beyond it
    guesses = [(sign, at) for sign in (1.0, -1.0) for at in middles]
    in_or_out = [(1, *max(guesses, key=lambda guess: score(*guess, *trial)))]
    in_or_out += [(-1, *max(guesses, key=lambda guess: score(*guess, *trial[::-1])))]
    best = max(in_or_out, key=lambda one: score(*one[1:], *trial[:: one[0]]))
    return score(*best[1:], *(with_it, without)[:: best[0]])


def reported(setting: Setting) -> float:
    limit = setting.privacy.participations
    found = setting.privacy.report(DELTA, setting.participations if limit is None else None)
    return found["epsilon if the server sees single replies" if setting.invented else "epsilon"]


def weakened(setting: Setting, factor: float) -> Setting:
    """The same with less noise than is reported, as a check that the audit would notice it."""
    privacy = setting.privacy
    return dataclasses.replace(
        setting, privacy=dataclasses.replace(privacy, noise_multiplier=factor * privacy.noise_multiplier)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=2000, help="of each world")
    parser.add_argument("--settings", type=int, nargs="*", default=list(range(len(SETTINGS))))
    options = parser.parse_args()
    began, above = time.process_time(), 0
    print("| setting | reported ε | lower bound |\n|---|---:|---:|")
    for setting in [SETTINGS[number] for number in options.settings]:
        lower, claim = audited(setting, options.runs), reported(setting)
        above += lower > claim
        print(f"| {setting.name} | {claim:.2f} | {lower:.2f} |", flush=True)
    print(f"\n{options.runs} runs per world, delta {DELTA:g}, {time.process_time() - began:.0f} s; {above} above")


if __name__ == "__main__":
    main()
