"""Clients without JAX: a site needs Flower, NumPy, and PyTorch if its model is written in it.

On the server's side, ``fedspam.flower.export_works`` writes the works of a method to a file. At the site, `client_app`
makes the ``ClientApp`` from that file and from a `numpy_client` or a `torch_client`; `relay_app` makes it from a
program in any language. The modules that fedspam itself has too are links to its files.
"""

from fedspam_client._shared._internal.version import __version__ as __version__
from fedspam_client.app import client_app as client_app
from fedspam_client.clients import numpy_client as numpy_client, torch_client as torch_client
from fedspam_client.relay import relay_app as relay_app
