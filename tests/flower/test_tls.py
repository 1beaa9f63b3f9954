"""TLS with node keys on real processes, by the scripts of the starter project, behind a proxy as its proxy.conf says.

One SuperLink, registered nodes that train, one that is not registered and is refused, a control interface that clients
cannot reach. All on 127.0.0.1, bounded in time; nothing is left behind.
"""

import http.client
import http.server
import json
import re
import shutil
import ssl
import threading
from pathlib import Path

import pytest

import processes
from fedspam.app.commands import new

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
pytestmark = pytest.mark.slow
if not all(map(shutil.which, ("openssl", "ssh-keygen"))):
    pytest.skip("needs openssl and ssh-keygen", allow_module_level=True)

LONGEST = 900  # seconds after which the run hangs; on two idle cores it takes about 30


class Gate(http.server.ThreadingHTTPServer):
    """The proxy of proxy.conf: TLS, `/v1/fleet/` to the SuperLink, 403 for every other path."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, secrets: Path, superlink: int) -> None:
        super().__init__(("127.0.0.1", 0), Passage)
        self.superlink, self.refused, self.passed = superlink, [], 0
        self.trusted = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(secrets / "server.pem", secrets / "server.key")
        self.socket = own.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def port(self) -> int:
        return self.server_address[1]

    def handle_error(self, request, client_address) -> None:
        """A client that went away is no matter."""


class Passage(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.startswith("/v1/fleet/"):
            self.server.refused.append(self.path)
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        inner = http.client.HTTPSConnection("127.0.0.1", self.server.superlink, context=self.server.trusted, timeout=60)
        inner.request(self.command, self.path, body, dict(self.headers))
        answer = inner.getresponse()
        data = answer.read()
        inner.close()
        self.server.passed += 1
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = pass_on  # noqa: N815 the library's names

    def log_message(self, format, *args) -> None:
        """Quiet."""


def answered(port: int, path: str, authority: Path | None) -> int | str:
    """The status of a request, or the name of what went wrong."""
    context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    link = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        link.request("GET", path)
        return link.getresponse().status
    except OSError as error:
        return type(error).__name__
    finally:
        link.close()


@pytest.mark.thorough  # a second federation of processes; `make full` runs it
def test_registered_nodes_train_and_others_are_refused(tmp_path):
    new.create(tmp_path / "trial")
    deploy, port = tmp_path / "trial" / "deploy", processes.free_port()
    secrets, here = deploy / "secrets", {"SUPERLINK": f"127.0.0.1:{port}"}
    with processes.closing(processes.Processes(tmp_path)) as running:
        running.run("certificates", ["./certificates.sh", "localhost"], deploy, 30)
        running.run("keys", ["./keys.sh", "3"], deploy, 30)
        running.start("superlink", ["./superlink.sh"], deploy, here)
        running.wait(lambda: answered(port, "/health", secrets / "ca.crt") == 200, 60, "the SuperLink to answer")
        assert answered(port, "/health", None) == "SSLCertVerificationError"  # whoever lacks the certificate
        running.run("register", ["./register.sh", "secrets/node0.pub", "secrets/node1.pub"], deploy, 60, here)

        gate = Gate(secrets, port)
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        try:
            # from outside nobody registers a node or starts a run
            outside = {"SUPERLINK": f"127.0.0.1:{gate.port}", "FLWR_HOME": str(tmp_path / "outside")}
            running.start("intruder", ["./register.sh", "secrets/node2.pub"], deploy, outside)
            for number in range(3):
                node = ["./supernode.sh", str(number), "3" if number == 2 else "2", f"127.0.0.1:{gate.port}"]
                running.start(f"supernode{number}", node, deploy, {"PORT": str(processes.free_port())})
            assert running.finish("intruder", 60) != 0
            assert any(path.startswith("/v1/control/") for path in gate.refused)
            # the third has a key and the certificate, and was not registered
            assert running.finish("supernode2", 60) != 0
            assert "Failed to activate SuperNode" in running.log("supernode2")
            assert "No SuperNode found with the given public key" in running.log("superlink")

            settings = ["num-rounds=1", "min-available-nodes=2", f'folder="{tmp_path / "run"}"']
            log = running.run("train", ["./train.sh", *settings], deploy, LONGEST, here)
            passed = gate.passed
        finally:
            gate.shutdown()
            gate.server_close()
        assert "whoami: 2 of 2 clients are connected" in log
        assert "difference: Received 2 results and 0 failures" in log
        accuracies = [float(found) for found in re.findall(r"'accuracy': '([0-9.e+-]+)'", log)]
        assert accuracies[-1] > 0.6 > accuracies[0]
        sites = json.loads((tmp_path / "run" / "sites.json").read_text())  # as Flower's registry has them
        for number, (name, key) in sites.items():
            said = running.run("fingerprint", ["ssh-keygen", "-lf", f"secrets/node{number}.pub"], deploy, 30)
            assert (name, key) == (f"node{number}", said.split()[1])
        assert sorted(sites) == ["0", "1"]
        assert passed > 20  # all that the nodes did went through the gate
