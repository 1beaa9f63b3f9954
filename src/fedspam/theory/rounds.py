r"""Rounds of methods as programs: each states its points, its gradients and what its assumptions say of them."""

from fractions import Fraction

from fedspam.theory.programs import Exact, Held, RoundProgram, Terms, interpolate, lower, symbols, total

# --- SPAM: in units of gamma, where the prox of any client has relative precision `relative` ---


def prox_round(ratio: Exact, drift: Exact, relative: Exact = 0) -> RoundProgram:
    r"""A round in which any client moves, by a prox that is exact or has a relative precision; in units of gamma.

    The vectors are the step d, the error e of g, the client's change of :math:`\nabla f_i - \nabla f` along d, and
    :math:`\nabla\phi(x_{k+1})`. Lists: docs/tight.md.
    """
    d, e, change, residual = symbols("d e change residual")
    slope = d + e + change  # minus the gradient of f at the new point
    if relative:
        slope = slope + residual
    unknowns = {
        "gain": -(slope @ slope),
        "weight": e @ e - Fraction(drift) * (d @ d),
        "similar": change @ change - Fraction(ratio) ** 2 * (d @ d),
    }
    if relative:
        unknowns["relative"] = residual @ residual - Fraction(relative) ** 2 * (d @ d)
    # f(x) - f(x+) is at least this, because the prox does not increase phi
    base = Fraction(1, 2) * (d @ d) + e @ d + lower(d, change, ratio)
    return RoundProgram(base, unknowns)


def round_of_clients(clients: int, ratio: Exact, fresh_weight: Exact, cohort: Exact = 1) -> RoundProgram:
    r"""The same round of SPAM with all its n clients: their gradients at both points and their values, in units of
    gamma. Nothing is eliminated by hand, so it is a check of `prox_round`. Client 0 moves by an exact prox.

    The gradients of :math:`h_i = f_i - f` are a_i at x and b_i at the new point, and f and h_i are 0 at x.
    """
    d, e, f = symbols("d e f+")
    others = range(1, clients)
    a, b, h = (symbols(" ".join(f"{letter}{i}" for i in others)) for letter in ("a", "b", "h"))
    a, b, h = ([-total(each), *each] for each in (a, b, h))
    p, r = Fraction(fresh_weight), Fraction(ratio)
    mean = lambda each: Fraction(1, clients) * total(each)
    noise = mean([v @ v for v in ([y - (1 - p) * x for x, y in zip(a, b, strict=True)])])
    spread = 2 * p**2 * mean([v @ v for v in b])
    slope = d + e + b[0] - a[0]  # minus the gradient of f at the new point
    held = {"prox": f + h[0] + (e - a[0]) @ d + Fraction(1, 2) * (d @ d)}  # <= 0
    for i in range(clients):
        least = lower(d, b[i] - a[i], r)
        held[f"forth {i}"] = least + a[i] @ d - h[i]
        held[f"back {i}"] = h[i] - b[i] @ d + least
    weight = e @ e - 1 / (p * (2 - p) * cohort) * (noise - spread)
    return RoundProgram(-f, {"gain": -(slope @ slope), "weight": weight, **held})


def averaged_round(ratio: Exact, drift: Exact, weak: Exact, relative: Exact = 0) -> RoundProgram:
    r"""A round of SPAM-PPA, where f is :math:`\rho`-weakly convex and `weak` is
    :math:`\gamma\rho`; about the mean of the squared gradients at the clients' own points.

    The steps of the clients are their mean d and deviations from it. The mean of what holds for each client splits
    into the same about the means, which is `prox_round`, and about a deviation: "apart", "bent", "loose".
    """
    mean = prox_round(ratio, drift, relative)
    apart, bent, loose = symbols("apart bent loose")
    unknowns = dict(mean.unknowns)
    slope = apart + bent + loose if relative else apart + bent
    unknowns["gain"] = unknowns["gain"] - slope @ slope
    if relative:
        unknowns["relative"] = unknowns["relative"] + loose @ loose - Fraction(relative) ** 2 * (apart @ apart)
    unknowns["similar"] = unknowns["similar"] + bent @ bent - Fraction(ratio) ** 2 * (apart @ apart)
    own = Fraction(1, 2) * (1 - Fraction(weak)) * (apart @ apart) + lower(apart, bent, ratio)
    return RoundProgram(mean.base + own, unknowns)


def several_rounds(rounds: int, ratio: Exact, kept: Exact, drift: Exact) -> RoundProgram:
    r"""That many rounds of SPAM at once, from :math:`g_0 = \nabla f(x_0)` and without noise.

    The mean squared error of g is known to obey :math:`e_{k+1} \le (1 - q)e_k + q s^2\|d_k\|^2`, with the `kept`
    :math:`1 - q` and the `drift` :math:`s^2`. Its multiplier in every round is free: a Lyapunov function whose weights
    vary over the rounds. The gain is the share of the sum of the squared gradients.
    """
    base, gain, unknowns = Terms(), Terms(), {}
    errors = symbols(" ".join(f"e{k}" for k in range(rounds + 1)))
    for k in range(rounds):
        d, change = symbols(f"d{k} change{k}")
        e = errors[k] if k else Terms()
        gain = gain - (d + e + change) @ (d + e + change)
        base = base + Fraction(1, 2) * (d @ d) + e @ d + lower(d, change, ratio)
        after = Fraction(kept) * (e @ e) + (1 - Fraction(kept)) * Fraction(drift) * (d @ d)
        unknowns[f"error {k + 1}"] = errors[k + 1] @ errors[k + 1] - after
    return RoundProgram(base, {"gain": gain, **unknowns})


# --- rivals, in units of their step size ---


def gradient_round(ratio: Exact, drift: Exact) -> RoundProgram:
    r"""A step along g where f is L-smooth, of MVR, PAGE or SARAH; `ratio` is :math:`\gamma L`.

    They differ in the `drift` :math:`s^2`: for PAGE it is :math:`\frac{1-p}{pb}\gamma^2L^2`. The gain is the share of
    :math:`\|\nabla f(x_k)\|^2`.
    """
    d, e = symbols("d e")
    slope = -(d + e)
    base = -(slope @ d) - Fraction(ratio) / 2 * (d @ d)
    return RoundProgram(base, {"gain": -(slope @ slope), "weight": e @ e - Fraction(drift) * (d @ d)})


def sppm_round(convex: Exact) -> RoundProgram:
    r"""The prox of one client's loss; `convex` is :math:`\gamma\mu`. The gain is the factor by which
    :math:`\|x - x_*\|^2 + \gamma^2\sigma_*^2` shrinks; the cross term with :math:`\nabla f_i(x_*)` has mean 0."""
    x, y, s = symbols("x y s")
    held = {"convex": (1 + Fraction(convex)) * (y @ y) - (x - s) @ y, "less": x @ s, "more": -(x @ s)}
    return RoundProgram(x @ x + s @ s, {"gain": -(y @ y), **held})


def svrp_round(ratio: Exact, convex: Exact, chance: Exact, weight: Exact) -> RoundProgram:
    r"""SVRP: the prox of one client around :math:`x - \gamma(\nabla f(w) - \nabla f_i(w))`; with a chance w becomes the
    new point. The gain is the share by which :math:`\|x - x_*\|^2 + A\|w - x_*\|^2` shrinks, where A is `weight`."""
    x, w, y, c = symbols("x w y c")
    chance, weight = Fraction(chance), Fraction(weight)
    before = x @ x + weight * (w @ w)
    after = (1 + weight * chance) * (y @ y) + weight * (1 - chance) * (w @ w)
    held = {
        "convex": (1 + Fraction(convex)) * (y @ y) - (x + c) @ y,
        "similar": c @ c - Fraction(ratio) ** 2 * (w @ w),
        "less": x @ c,
        "more": -(x @ c),
    }
    return RoundProgram(before - after, {"gain": -before, **held})


def s_dane_round(ratio: Exact, convex: Exact) -> RoundProgram:
    r"""S-DANE with exact proxes and two clients, :math:`f_i = f \pm h`; `ratio` is :math:`\delta/\lambda`.

    The gain is the share of :math:`f(x_{k+1}) - f_*` in the decrease of :math:`\frac12\|v - x_*\|^2`, of which the
    new one counts :math:`1 + \mu/\lambda` times.
    """
    v, *slopes = symbols("v " + " ".join(f"g{i}{at}" for at in "v01m" for i in range(2)) + " g0*")
    values = symbols(" ".join(f"f{i}{at}" for at in "v01m" for i in range(2)) + " f0*")
    slopes, values = [*slopes, -slopes[-1]], [*values, -values[-1]]  # f and its gradient are 0 at x*
    pair = lambda each, place: each[2 * place : 2 * place + 2]
    half, mu = Fraction(1, 2), Fraction(convex)
    center, own = pair(slopes, 0), (slopes[2], slopes[5])  # client i at its own point
    shift = half * (center[0] - center[1])
    reached = [v - own[0] + shift, v - own[1] - shift]
    mean = half * (reached[0] + reached[1])
    after = 1 / (1 + mu) * (mu * mean + v - half * (own[0] + own[1]))
    points = [v, *reached, mean, Terms()]
    held: Held = {}
    for i in range(2):
        at = [(x, pair(slopes, k)[i], pair(values, k)[i]) for k, x in enumerate(points)]
        held |= interpolate(f"f{i}", at, lambda step, change: mu / 2 * (step @ step))
    apart = lambda each, k: half * (pair(each, k)[0] - pair(each, k)[1])
    at = [(x, apart(slopes, k), apart(values, k)) for k, x in enumerate(points)]
    held |= interpolate("h", at, lambda step, change: lower(step, change, ratio))
    base = half * (v @ v) - half * (1 + mu) * (after @ after)
    return RoundProgram(base, {"gain": -half * (values[6] + values[7]), **held})
