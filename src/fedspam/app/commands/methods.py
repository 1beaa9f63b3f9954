"""`fedspam methods`: list all methods with their facts and costs.

List all methods: what their theory covers, what they send, and their key for `compare`.
"""

import argparse


def add(command: argparse.ArgumentParser) -> None:
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", dest="form", action="store_const", const="markdown", help="print docs/methods.md")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    command.set_defaults(form="table")


def run(options: argparse.Namespace) -> int:
    from fedspam.app.methods import show

    return show(options.form)
