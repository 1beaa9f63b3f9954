"""`fedspam methods`: the table of all methods."""

import argparse

from fedspam.app.commands._arguments import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "methods",
        help="list all methods with their facts and costs",
        description="List all methods: what their theory covers, what they send, and their key for `compare`.",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", dest="form", action="store_const", const="markdown", help="print docs/methods.md")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    command.set_defaults(run=run, form="table")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.methods import show

    return show(options.form)
