"""PyTorch modules whose arrays would not all travel."""

from typing import Any


def check_buffers(module: Any, kept: tuple[type[Any], ...] = ()) -> None:
    """Raise an error if a PyTorch module keeps arrays that are not parameters: they would be lost, since only
    parameters travel. The running statistics of batch norm are such arrays, unless a policy keeps them.

    Arguments:
        kept: the kinds of layers whose arrays are not lost.
    """
    saved = module.state_dict().keys()
    for name, part in module.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        lost = [buffer for buffer, _ in part.named_buffers(recurse=False) if prefix + buffer in saved]
        if not lost or isinstance(part, kept):
            continue
        norm = "running_mean" in lost
        remedy = (
            "use GroupNorm, or track_running_stats=False, or normalization= of fedspam.flower.torch_app"
            if norm
            else "if it is a constant, register it with persistent=False"
        )
        raise ValueError(
            f"the module {name or 'itself'} ({type(part).__name__}) keeps {', '.join(lost)}, which are not parameters: "
            f"they do not travel, and the trained model would lack them; {remedy}"
        )
