"""When to use each method, and the families: for the table of methods, the terminal, and the pages of the methods.

The sentences follow from what a method needs (state, everyone, smoothness, tuning) and, where they rank methods, from
docs/comparison.md, docs/choosing.md and docs/auto.md.
"""

# the ten to know before the others, in the order in which to try them
FIRST = ("auto", "fedavg", "fedadam", "fedprox", "scaffold", "spam_pp", "spam_ppa", "spam", "saber", "ditto")

# title, what the methods have in common, and their keys; a method belongs to one family
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "SPAM": (
        "An estimate of the gradient that remembers, and a prox on clients. They gain from clients that are alike.",
        ("auto", "spam", "spam_inexact", "spam_varying", "spam_pp", "spam_ppa"),
    ),
    "Local steps": (
        "Clients train for some steps, and the server averages. They keep nothing between rounds.",
        ("auto_steps", "fedavg", "fedprox", "fednova", "fedexp", "fedexprox", "fedsps", "delta_sgd"),
    ),
    "Local steps with momentum or an optimizer on the server": (
        "As FedAvg, but the server treats the average move as a gradient.",
        ("fedavgm", "fedacg", "fedadam", "fedyogi", "fedadagrad", "fedopt", "fedcm", "fedcm_vr"),
    ),
    "Local steps with memory on clients": (
        "A client keeps a vector that corrects its drift, and needs to come back.",
        (
            "scaffold", "scaffold_gradient", "scaffold_m", "scaffold_m_vr", "feddyn", "scaffnew", "padamfed",
            "padamfed_vr",
        ),
    ),
    "Mime": (
        "An optimizer for pooled data, followed on clients.",
        ("mime", "mime_momentum", "mime_adam", "mime_mvr", "mime_lite", "mime_lite_mvr"),
    ),
    "Gradient steps that use similarity": (
        "One client, or all of them, follow a corrected gradient for some steps.",
        ("ce_lsgd", "bvr_l_sgd", "fedred", "fedred_memory"),
    ),
    "Proxes": (
        "Clients solve a local problem that is held near the server's point.",
        (
            "dane", "dane_plus", "feddane", "s_dane", "acc_s_dane", "adaptive_s_dane", "adaptive_acc_s_dane",
            "acc_extragradient", "sppm", "sppm_as", "svrp", "catalyzed_svrp", "svrs", "acc_svrs", "saber",
            "saber_partial", "rg_saga", "rg_svrg", "proxy_prox",
        ),
    ),
    "Gradients only": (
        "Clients send gradients, and the server takes the step.",
        ("mvr", "page", "sarah", "storm", "storm_plus", "meta_storm"),
    ),
    "Compressed replies": (
        "Methods that stay correct where a codec keeps a small part of each reply.",
        ("ef21_pp", "dasha_pp", "locodl", "olga"),
    ),
    "Personal models": (
        "Each client also gets a model of its own.",
        ("ditto",),
    ),
}  # fmt: skip

WHEN = {
    "spam": "Clients are alike and reachable one at a time: one client, one exchange per round, no state. With "
    "cohorts of several clients take `spam_pp`.",
    "spam_inexact": "As `spam`, where an exact prox is too expensive: the client stops as soon as its certificate "
    "holds.",
    "spam_pp": "Clients are alike (δ/L up to about 0.1), a cohort answers per round, and bytes count: only one "
    'client moves. Take `auto` with `movers="one"` to have step size and fresh weight chosen.',
    "spam_ppa": "As `spam_pp`, where rounds cost more than bytes, or where some clients may be hostile: the whole "
    "cohort moves and a robust rule can average. Losses must be smooth.",
    "spam_varying": "You want the decreasing step sizes of the theorem, with a guarantee that improves with every "
    "round, rather than a constant step size with an error floor.",
    "acc_extragradient": "Convex losses, very alike clients, and one that can solve proxes for all (client 0): as "
    "`acc_s_dane` with everyone, but the others only send gradients.",
    "acc_s_dane": "Convex losses, very alike clients and δ known: fewer rounds than `s_dane` to fine targets. Not "
    "for networks.",
    "acc_svrs": "Strongly convex, alike clients with one that always answers (client 0), and all clients "
    "reachable now and then. It needs fewer rounds than `svrs` where conditioning is bad.",
    "adaptive_acc_s_dane": "As `acc_s_dane` with everyone in every round, where δ is unknown: a line search finds "
    "it, for one more trip per trial.",
    "adaptive_s_dane": "As `s_dane` with everyone in every round, where δ is unknown: a line search finds it, for "
    "one more trip per trial.",
    "auto": "Begin here. It needs a cohort size and nothing else. Take another method for one client per round, "
    "for a guarantee, or where clients can hardly compute.",
    "auto_steps": "Clients train on minibatches and you do not want to tune: one exchange and two vectors per "
    "round, as FedAvg. `auto` becomes this method there by itself.",
    "bvr_l_sgd": "All clients are reachable in every round, smooth non-convex losses, alike clients. With a "
    "cohort of some clients take `ce_lsgd`.",
    "catalyzed_svrp": "Strongly convex, badly conditioned, alike clients reached one at a time, with all of them "
    "reachable now and then. Otherwise `svrp` is simpler.",
    "ce_lsgd": "As `spam_pp`, where local gradient steps are preferred to a prox: smooth losses, alike clients, "
    "few bytes.",
    "dane": "Few alike clients with convex losses that all answer in every round, such as a cluster. Its fixed "
    "point is the optimum; with unlike clients it can diverge.",
    "dane_plus": "As `dane`, where only one client should compute a prox per round, or losses are not convex.",
    "delta_sgd": "FedAvg without tuning a learning rate: each client adapts its own, step by step. Compare it "
    "with `auto_steps`.",
    "fedacg": "You train networks with few participants per round and can tune: server momentum that looks ahead, "
    "at FedAvg's bytes up and no client state.",
    "fedadagrad": "Sparse or rare features, such as words, where coordinates need different step sizes. `fedadam` "
    "is the more common choice.",
    "fedadam": "You train a network whose coordinates have very different scales, such as a language model, and "
    "can tune two rates. Bytes are those of FedAvg.",
    "fedavg": "The baseline: smooth losses, cheap local steps, one exchange, no client state. It stops at an "
    "error floor where clients differ; tune `local_rate` and `local_steps`, or take `auto`.",
    "fedavgm": "You train a network and can tune: FedAvg with momentum on the server, at the same bytes.",
    "feddane": "As `dane` with cohorts of some clients, for comparison with the literature. `spam_pp` keeps its "
    "past estimates and needs no second cohort.",
    "feddyn": "A fixed set of clients that come back often and may keep a vector: removes FedAvg's error floor at "
    "FedAvg's bytes.",
    "fedexp": "FedAvg with convex or overparametrized losses, where the average moves too little: the server "
    "chooses its own step.",
    "fedexprox": "As `fedprox` with convex losses, where clients can nearly agree (interpolation): the server "
    "goes further than the average.",
    "fedopt": "The server should use an optimizer of Optax that no other method here has, such as Lion: FedAvg's "
    "bytes, and two rates to tune.",
    "fedprox": "Losses that are not smooth, or clients that do unequal work: each solves its prox as well as it "
    "can. Like FedAvg it has an error floor where clients differ.",
    "fedred": "All clients answer in every round, alike, with cheap gradients: gradient steps in place of a prox.",
    "fedred_memory": "As `fedred`, with one trip per round in place of two, if clients may remember their controls.",
    "fedsps": "FedAvg without tuning a learning rate, where every client can nearly reach a known lowest loss "
    "(such as zero).",
    "fedyogi": "As `fedadam`, where gradients are sparse and Adam's second moments change too fast.",
    "meta_storm": "A server that only averages gradients, with noise of unknown size: the fresh weight follows "
    "the measured variance, for a second cohort per round.",
    "mime": "You know an optimizer that works on pooled data (here SGD) and want its steps on clients, with a "
    "cohort's gradient against client drift; no state.",
    "mime_adam": "As `mime`, if Adam is what works on pooled data.",
    "mime_lite": "As `mime_momentum` at one exchange per round, where drift is small.",
    "mime_lite_mvr": "As `mime_mvr` at one exchange per round, where clients are very alike.",
    "mime_momentum": "As `mime`, if SGD with momentum is what works on pooled data.",
    "mime_mvr": "Alike clients, little noise, smooth losses, and rounds cost more than bytes: up to half the "
    "rounds of `spam_pp` on quadratics, at about twice the bytes.",
    "mvr": "Clients can only send gradients and do no local work. Where they are alike and noise is small, "
    "`spam_pp` needs 5 to 20 times fewer rounds.",
    "page": "Clients are not alike, all of them are reachable now and then, and they only send gradients.",
    "rg_saga": "Few clients, much noise, one that always answers (client 0), and clients may remember a gradient: "
    "one of the few that reach fine targets there.",
    "rg_svrg": "As `rg_saga` without client state, if all clients are reachable now and then.",
    "s_dane": "Convex losses and alike clients: as `dane`, but it allows less accurate proxes and works with cohorts.",
    "saber": "Few clients, much noise, and all of them are reachable now and then: the fewest rounds of the "
    "comparison. It pays with bytes.",
    "saber_partial": "As `saber`, if all clients are never reachable at once: a larger cohort stands for them.",
    "sarah": "As `page`, with whole gradients at fixed rounds in place of random ones.",
    "scaffnew": "All clients answer in every round, may keep a vector, and losses are strongly convex: local "
    "steps with a proved gain in communication, without similarity.",
    "scaffold": "A fixed set of clients that come back often and may keep a vector: local steps without FedAvg's "
    "error floor, for one more vector down.",
    "scaffold_gradient": "As `scaffold`, where one more gradient per client and round is cheap: controls are "
    "gradients at the server's point.",
    "sppm": "A baseline for `spam`: one client's prox per round, without variance reduction. It has an error "
    "floor unless the clients share a minimizer.",
    "storm": "As `mvr`, if you prefer step sizes from the gradients so far to tuning.",
    "storm_plus": "As `storm`, with one scale left to choose.",
    "svrp": "Strongly convex, alike clients reached one at a time, with all of them reachable now and then for an "
    "exact anchor.",
    "svrs": "As `svrp`, with one client that always answers (client 0) and does all proxes.",
    "dasha_pp": "As `ef21_pp`, where the codec is unbiased and many clients average its error out, or clients draw "
    "minibatches: two vectors of client state, and one more vector down.",
    "ditto": "Each client wants a model of its own, near the common one, and may keep it: personalization at "
    "FedAvg's bytes. The common model is FedAvg's.",
    "ef21_pp": "Replies must be a small fraction of a vector, clients come back often and may keep a vector, "
    "and they only send gradients: compression without an error floor.",
    "fedcm": "You train a network with few participants per round, and clients drift apart: local steps share the "
    "server's direction, for one more vector down and no client state.",
    "fedcm_vr": "As `fedcm`, where the noise of clients and minibatches limits it: two gradients per local step, one "
    "more vector down, still no client state.",
    "fednova": "Clients do different numbers of local steps, since their data or machines differ: FedAvg would "
    "favor those with more. With equal steps it is FedAvg.",
    "locodl": "As `scaffnew`, with compressed replies: all clients answer in every round, keep three vectors, and "
    "losses are strongly convex.",
    "olga": "As `acc_svrs` where everyone answers in every round with few bytes: strongly convex, alike clients, one "
    "that always answers (client 0), and an unbiased codec.",
    "padamfed": "You know the number of rounds and want nothing else to tune, and clients come back and may keep a "
    "vector. A round moves by a fixed length, so compare it with `auto` on your scales.",
    "padamfed_vr": "As `padamfed`, where noise is small: two gradients per local step, one more vector each way.",
    "proxy_prox": "Some clients may be hostile, the others are alike, and one is trusted, such as data of the "
    "server's own: a robust rule combines the gradients, and that client alone moves. `spam_ppa` trusts nobody.",
    "scaffold_m": "As `scaffold`, with the server's direction in every local step: few participants per round, "
    "clients that come back and may keep a vector.",
    "scaffold_m_vr": "As `scaffold_m`, where the noise of clients and minibatches limits it: two gradients per local "
    "step, one more vector each way.",
    "sppm_as": "Talking to the same cohort again is cheap, and drawing a new one is not (a hub with its devices): "
    "K exchanges per cohort. Losses are convex, and similarity is not used.",
}
