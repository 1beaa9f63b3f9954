"""Methods that stand for all others where a test is about what every kind of round shares."""

# one of each kind of round; `make full` tries all methods
KINDS = (
    "spam", "spam_ppa", "auto", "auto_steps", "fedavg", "fedadam", "fedacg", "feddyn", "mime", "mime_lite_mvr", "page",
    "saber", "storm", "svrp", "s_dane", "adaptive_s_dane", "scaffnew", "dane", "ce_lsgd", "rg_saga", "fedred",
)  # fmt: skip
