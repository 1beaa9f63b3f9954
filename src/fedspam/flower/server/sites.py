"""Who is behind a node: the name and the public key with which the operator has registered it.

``flwr supernode register node0.pub --name Lyon`` puts both into Flower's registry, which no client can change. Nodes
without a name are those of simulations and of federations without keys; nothing is known of them.
"""

import base64
import functools
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from flwr.serverapp import Grid

from fedspam._internal import files

FILE = "sites.json"
LARGEST = 2**24  # bytes of that file


class Site(NamedTuple):
    """A site in the registry."""

    name: str
    key: str  # the fingerprint of its public key, as `ssh-keygen -l` prints it


class Sites:
    """The sites of the nodes that are connected, and which of them is which client of this run.

    One key is one site, and a site stays the client that it was, also when it comes back under another node id or when
    the server is resumed: a folder keeps them.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._nodes: dict[int, Site] = {}
        self.clients: dict[int, Site] = {} if self._path is None or not self._path.exists() else _read(self._path)
        self._owners = {site.key: client for client, site in self.clients.items()}
        self._is_saved = True

    def look(self, grid: Grid) -> list[int]:
        """The connected nodes, in the order in which they registered with Flower."""
        nodes = sorted(grid.get_nodes(), key=lambda node: (node.registered_at, node.node_id))
        self._nodes = {
            node.node_id: Site(str(node.name), fingerprint(bytes(node.public_key))) for node in nodes if node.name
        }
        return [node.node_id for node in nodes]

    def at(self, node: int) -> Site | None:
        return self._nodes.get(node)

    def client_of(self, node: int) -> int | None:
        """The client that the site of this node has been so far in this run."""
        site = self.at(node)
        return None if site is None else self._owners.get(site.key)

    def claim(self, client: int, node: int) -> str | None:
        """Note that the site of this node is this client; or say why it cannot be."""
        site, owner, before = self.at(node), self.clients.get(client), self.client_of(node)
        if owner is not None and (site is None or site.key != owner.key):
            whose = "a node without a registered name" if site is None else f"the site {site.name!r}"
            return f"client {client} is the site {owner.name!r} with the key {owner.key}; {whose} cannot take its place"
        if site is None:
            return None
        if before not in (None, client):
            return f"the site {site.name!r} is client {before} already; give every site a key of its own"
        if owner != site:
            self.clients[client], self._owners[site.key], self._is_saved = site, client, False
        return None

    def matched(self, clients: list[int], nodes: list[int]) -> tuple[list[int], list[int]]:
        """The same clients and nodes, in an order in which sites that were clients before stand beside them."""
        free = set(clients)
        own = {client: node for node in nodes if (client := self.client_of(node)) in free}
        others = [client for client in clients if client not in own]
        others.sort(key=lambda client: client in self.clients)  # places of sites that are away are the last
        back = set(own.values())
        return [*own, *others], [*own.values(), *(node for node in nodes if node not in back)]

    def release(self, client: int) -> None:
        """The client is nobody's any more, because it cannot take part."""
        site = self.clients.pop(client, None)
        if site is not None:
            del self._owners[site.key]

    def called(self, client: int) -> str:
        """The client as logs name it.

        >>> sites = Sites(None)
        >>> sites.clients[3] = Site("Lyon", "SHA256:...")
        >>> sites.called(3), sites.called(4)
        ('client 3 (Lyon)', 'client 4')
        """
        site = self.clients.get(client)
        return f"client {client}" if site is None else f"client {client} ({site.name})"

    def save(self) -> None:
        """Have all sites on disk, if there are any."""
        if self._path is not None and not self._is_saved:
            files.write(self._path, (json.dumps(self.clients, indent=1) + "\n").encode())
            self._is_saved = True


@functools.lru_cache(maxsize=2**16)
def fingerprint(key: bytes) -> str:
    """The fingerprint of a public key as PEM; that of its bytes if it is something else."""
    try:
        text = load_pem_public_key(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        key = base64.b64decode(text.split()[1])
    except (ValueError, UnsupportedAlgorithm):
        pass
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def _read(path: Path) -> dict[int, Site]:
    try:
        found = json.loads(files.read(path, size=LARGEST))
        sites = {int(client): Site(*map(str, site)) for client, site in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise files.RecordError(f"{path} does not hold the sites of clients ({error}); use another folder") from None
    return sites
