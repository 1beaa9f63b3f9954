"""`fedspam lab`: a playground in the browser: sliders and live curves.

Serve a page on this machine alone: sliders for similarity, step size, fresh_weight, cohort and local
work on the paper's ridge; methods race as they move. Copy what you found as Python or TOML.
It ends with Ctrl-C, or by itself after an hour without a visit.

examples:
  fedspam lab --open
  fedspam lab --port 0        any free port; the address is printed
"""

import argparse
import json
import sys

from fedspam.app.commands._arguments import whole


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("--port", type=whole(0, 65535), default=8765, metavar="N", help="port; 0 for any free one")
    command.add_argument(
        "--idle", type=whole(1), default=60, metavar="MINUTES", help="end when nobody came for so long"
    )
    command.add_argument("--open", action="store_true", help="open the page in the browser")
    command.add_argument("--json", action="store_true", help="print the address as a JSON object")


def run(options: argparse.Namespace) -> int:
    from fedspam.app import lab

    def ready(address: str) -> None:
        text = json.dumps({"address": address}) if options.json else f"fedspam lab: {address}  (Ctrl-C ends it)"
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if options.open:
            import webbrowser

            webbrowser.open(address)

    lab.serve(options.port, idle=60.0 * options.idle, ready=ready)
    return 0
