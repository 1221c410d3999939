"""The recipes in deploy/ are well formed, agree with each other, and say what Parley accepts."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_docs import ROOT, understand, understand_torchrun

DEPLOY = ROOT / "deploy"
PORT = 29500
INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).split("\n")
    found = [line.partition(" ") for line in lines if line]
    return [(name, rest) for name, _, rest in found]


def values(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_the_dockerfile_is_well_formed() -> None:
    names = [name for name, _ in instructions()]
    assert {*names} <= INSTRUCTIONS and names[0] == "FROM"
    assert re.fullmatch(r"python:3\.1[1-3]-[\w-]+", values("FROM")[0]), "a fixed, supported Python"
    for script in values("RUN"):
        subprocess.run(["bash", "-n", "-c", script], check=True)


def test_the_image_gets_all_that_installing_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {"pyproject.toml", "parley", "constraints.txt", "examples"}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    if "custom" in project["tool"]["hatch"]["build"].get("hooks", {}):
        needed |= {"hatch_build.py"}
    first, *lines = [
        line
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert first == "*" and needed <= {line.removeprefix("!") for line in lines}
    copied = {source for line in values("COPY") for source in line.split()[:-1]}
    assert copied <= needed | {"."} and all((ROOT / name).exists() for name in needed)
    installs = [line for line in values("RUN") if line.startswith("pip install")]
    assert installs and all("--constraint constraints.txt" in line for line in installs)


def test_the_image_runs_parley_as_an_ordinary_user() -> None:
    assert json.loads(values("ENTRYPOINT")[0]) == ["parley"]
    understand(json.loads(values("CMD")[0]))
    assert values("EXPOSE") == [str(PORT)]
    job = documents()["Job"]["spec"]["template"]["spec"]
    user = job["securityContext"]["runAsUser"]
    assert values("USER") == ["peer"] and f"--uid {user} peer" in "".join(values("RUN"))


def documents() -> dict[str, dict[str, Any]]:
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def test_the_kubernetes_job_and_its_service_belong_together() -> None:
    found = documents()
    assert {*found} == {"Service", "Job"}
    assert found["Service"]["apiVersion"] == "v1" and found["Job"]["apiVersion"] == "batch/v1"
    service, job = found["Service"]["spec"], found["Job"]["spec"]
    pod = job["template"]["spec"]
    assert service["clusterIP"] == "None", "headless: every pod has a name"
    assert service["selector"].items() <= job["template"]["metadata"]["labels"].items()
    assert [port["port"] for port in service["ports"]] == [PORT]
    assert pod["subdomain"] == found["Service"]["metadata"]["name"]
    assert pod["restartPolicy"] == "Never" and job["completionMode"] == "Indexed"
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["containers"][0]["ports"] == [{"containerPort": PORT}]


def test_every_pod_runs_a_command_that_is_understood() -> None:
    found = documents()
    job = found["Job"]
    program, *arguments = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert program == "torchrun"
    pods = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == pods and f"--nnodes={pods}" in arguments
    # The names of an indexed job's pods: the job's, the index; then the service's.
    first = f"{job['metadata']['name']}-0.{found['Service']['metadata']['name']}"
    assert f"--rdzv-endpoint={first}:{PORT}" in arguments
    for index in range(pods):
        understand_torchrun(
            [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in arguments]
        )


SRUN = """#!/bin/bash
# One task on each of two nodes, as srun does it.
shift
for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames node[1-2]" ] && printf 'node1\\nnode2\\n'
"""
TORCHRUN = """#!/bin/bash
printf '%s\\n' "$#" "$@"
"""


def test_the_slurm_script_gives_every_node_its_command(tmp_path: Path) -> None:
    """Slurm is not here: its two commands are stood in for; the script itself is really run."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ["bash", str(DEPLOY / "slurm.sbatch")]
    done = subprocess.run(script, env=job | path, check=True, capture_output=True, text=True)
    words = done.stdout.splitlines()
    ranks = []
    while words:
        count = int(words[0])
        arguments, words = words[1 : count + 1], words[count + 1 :]
        understand_torchrun(arguments)
        assert arguments[arguments.index("--rdzv-endpoint") + 1] == "node1:24711"
        assert arguments[arguments.index("--nnodes") + 1] == "2"
        ranks.append(arguments[arguments.index("--node-rank") + 1])
    assert ranks == ["0", "1"]


def test_the_slurm_script_asks_for_the_nodes_it_uses() -> None:
    text = (DEPLOY / "slurm.sbatch").read_text(encoding="utf-8")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
    assert asked["nodes"] == "2" and asked["ntasks-per-node"] == "1"


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_the_slurm_script_has_no_shell_mistakes() -> None:
    subprocess.run(["shellcheck", str(DEPLOY / "slurm.sbatch")], check=True)


def test_every_recipe_is_explained_and_tested() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    recipes = {"Dockerfile", "slurm.sbatch", "kubernetes.yaml"}
    assert {path.name for path in DEPLOY.iterdir()} == recipes | {"Dockerfile.dockerignore"}
    assert all(f"(../deploy/{name})" in page for name in recipes)
