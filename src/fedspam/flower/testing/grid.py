"""A Grid inside one process, without a network: for tests, and to try an app in a debugger."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

Twist = Callable[[int, Message, Callable[[], Message]], list[Message]]


class LoopbackGrid(Grid):
    """Nodes that reply at once, in reverse order. An exception in a client becomes an error reply, as in Flower.

    Arguments:
        app: the ClientApp.
        clients: the number of nodes; or the node configuration of each.
        run_config: the app's ``context.run_config``.
        twist: (client, message, answer) -> the replies that arrive, to simulate faults; ``answer()`` is the client's
            reply.
        first: the id of the first node.
        sites: the names of the nodes in Flower's registry, each with a key that is made from it; None for no name.

    >>> import jax.numpy as jnp
    >>> from fedspam import spam
    >>> from fedspam.flower import FedspamStrategy, client_app, clients_of, to_arrays
    >>> from fedspam.problems import quadratics
    >>> clients, method = quadratics(0, clients=4, dimension=3), spam(step_size=0.5, fresh_weight=0.3)
    >>> grid = LoopbackGrid(client_app(clients_of(clients), method, jnp.ones(3)), clients=4)
    >>> result = FedspamStrategy(method, jnp.ones(3)).start(grid, to_arrays(jnp.ones(3)), num_rounds=2)
    >>> sorted(result.train_metrics_clientapp)
    [1, 2]
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int | Sequence[Mapping[str, Any]],
        *,
        run_config: Mapping[str, Any] | None = None,
        twist: Twist | None = None,
        first: int = 1000,
        sites: Sequence[str | None] | None = None,
    ) -> None:
        if isinstance(clients, int):
            clients = [{"partition-id": id, "num-partitions": clients} for id in range(clients)]
        self._app, self._twist = app, twist
        _identify()
        # node ids are in another order than the partitions, as in a real federation
        nodes = [first + (7 * number) % 1009 for number in range(len(clients))]
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in zip(nodes, clients, strict=True)
        }
        self._sites = dict(zip(nodes, sites or [], strict=False))
        self._clients = {node: number for number, node in enumerate(self.contexts)}
        self._replies: dict[str, list[Message]] = {}
        self._numbers = itertools.count()
        self.messages: list[Message] = []  # all messages sent so far

    def set_run(self, run: Any) -> None:
        """Does nothing: there is only one run."""

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError("use flwr.app.Message")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[Any]:
        for info in super().get_nodes():
            name = self._sites.get(info.node_id)
            if name is not None:
                info.name, info.public_key = name, f"key of {name}".encode()
            yield info

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name = f"message {next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = name
            self.messages.append(message)
            ids.append(name)
            self._replies[name] = self._replies_to(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in reversed(list(message_ids)) for reply in self._replies.pop(name, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _replies_to(self, message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        if node not in self.contexts:
            return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]

        def answer() -> Message:
            try:
                return self._app(message, self.contexts[node])
            except Exception as error:
                reason = f"{type(error)}:<'{error}'>"
                return Message(Error(code=2, reason=reason), reply_to=message)

        return [answer()] if self._twist is None else self._twist(self._clients[node], message, answer)


def _identify() -> None:
    """Set the ids that Flower needs to make a message outside of its own processes. Flower has no public API for it."""
    from fedspam.flower._flwr import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)
