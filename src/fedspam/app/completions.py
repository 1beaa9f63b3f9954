"""The scripts that let a shell complete the command `fedspam`. shtab writes them from the parser."""

import argparse
from pathlib import Path

import shtab


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script for one shell, with the dotted settings of `fedspam run` among its flags."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    _add_settings(commands.choices["run"])
    _add_methods(commands.choices["cite"])
    for command in commands.choices.values():
        for action in command._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _add_settings(run: argparse.ArgumentParser) -> None:
    from fedspam.app.config import setting_choices

    for name, choices in setting_choices().items():
        run.add_argument(f"--{name}", choices=choices or None)


def _add_methods(cite: argparse.ArgumentParser) -> None:
    from fedspam.methods import METHODS

    cite._positionals._group_actions[0].choices = list(METHODS)
