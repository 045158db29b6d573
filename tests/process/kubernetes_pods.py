#!/usr/bin/env python3
"""The pods of configs/kubernetes_job.yaml: kubernetes_pods.py BIN_DIR CONFIGS_DIR. Needs root for namespaces, else skips (77).

Each pod is a ddp-run with what Kubernetes documents for it: JOB_COMPLETION_INDEX, the host name JOB-INDEX, and in /etc/hosts its full
name JOB-INDEX.SUBDOMAIN.NAMESPACE.svc.cluster.local. What DNS would say of the first pod is there, too. The rest is the manifest's.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

SKIPPED = 77
LIMIT_S = 120
TOKEN = "a secret of the cluster that is long enough"
SET_UP = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
PROGRAM = ["sh", "-c", "echo pod $JOB_COMPLETION_INDEX is rank $RANK of $WORLD_SIZE in $TORCHELASTIC_RUN_ID"]

ddp_run = str(Path(sys.argv[1]) / "ddp-run")
manifest = Path(sys.argv[2]) / "kubernetes_job.yaml"


def read_manifest():
    """The Job's specification and its container, after a look at what must fit together for the pods to meet."""
    service, job = yaml.safe_load_all(manifest.read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"], spec
    assert service["spec"]["clusterIP"] == "None", "the Service is not headless"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}, service
    assert service["spec"]["publishNotReadyAddresses"] is True, service
    assert pod["subdomain"] == service["metadata"]["name"], pod
    (container,) = pod["containers"]
    assert container["command"][0] == "ddp-run", container
    return job["metadata"]["name"], spec, pod["subdomain"], container


def start(folder, index, name, domain, command, variables):
    hosts = folder / f"hosts.{index}"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {name}-{index}.{domain} {name}-{index}\n127.0.0.1 {name}-0.{domain}\n")
    environment = {**os.environ, **variables, "JOB_COMPLETION_INDEX": str(index)}
    # A network of its own, so that the port is free: pods have one each.
    return subprocess.Popen(["unshare", "--uts", "--mount", "sh", "-c", SET_UP, "sh", f"{name}-{index}", str(hosts), ddp_run, *command],
                            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--uts", "--mount", "--net", "true"], check=False).returncode != 0:
        print("needs root and namespaces")
        return SKIPPED
    if "IN_NET" not in os.environ:
        inside = 'ip link set lo up && exec "$@"'
        os.execvpe("unshare", ["unshare", "--net", "sh", "-c", inside, "sh", sys.executable, *sys.argv], {**os.environ, "IN_NET": "1"})
    name, spec, subdomain, container = read_manifest()
    variables = {one["name"]: one.get("value", TOKEN) for one in container["env"]}
    flags = container["command"][1:container["command"].index("ddp-train")]
    pods = spec["completions"]
    domain = f"{subdomain}.default.svc.cluster.local"
    with tempfile.TemporaryDirectory(prefix="ddp_pods.") as made:
        started = [start(Path(made), index, name, domain, [*flags, *PROGRAM], variables) for index in reversed(range(pods))][::-1]
        try:
            ends = [pod.communicate(timeout=LIMIT_S) for pod in started]
        finally:
            for pod in started:
                pod.kill()
    for index, (pod, (out, err)) in enumerate(zip(started, ends)):
        assert pod.returncode == 0, (index, pod.returncode, err)
        assert f"pod {index} is rank {index} of {pods} in {name}\n" in out, (index, out, err)
        assert "anybody" not in err, err
    print(f"{pods} pods were one job")
    return 0


if __name__ == "__main__":
    sys.exit(main())
