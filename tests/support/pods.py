"""The pods of configs/kubernetes_job.yaml on this machine. Needs root for namespaces.

Each pod is a ddp-run with what Kubernetes documents for it: JOB_COMPLETION_INDEX, the host name JOB-INDEX, and in /etc/hosts its full
name JOB-INDEX.SUBDOMAIN.NAMESPACE.svc.cluster.local. What DNS would say of the first pod is there, too. As in a pod, the command is
process 1, which no signal ends that it does not handle, and all processes end with it. The rest is the manifest's. Pods share one
network here.
"""
import os
import subprocess
import sys
from pathlib import Path

import yaml

import jobs

SKIPPED = 77
TOKEN = "a secret of the cluster that is long enough"
NAMESPACES = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
SET_UP = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def enter_network():
    """Goes on in a network of its own, where the port is free. Ends the test as skipped if this machine does not allow that."""
    if os.geteuid() != 0 or subprocess.run([*NAMESPACES, "--net", "true"], check=False).returncode != 0:
        print("needs root and namespaces")
        sys.exit(SKIPPED)
    if "IN_NET" not in os.environ:
        inside = 'ip link set lo up && exec "$@"'
        os.execvpe("unshare", ["unshare", "--net", "sh", "-c", inside, "sh", sys.executable, *sys.argv], {**os.environ, "IN_NET": "1"})


class IndexedJob:
    """The Job of the manifest, whose pods start in `folder`."""

    def __init__(self, manifest, ddp_run, folder):
        service, job = yaml.safe_load_all(Path(manifest).read_text())
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"], spec
        assert service["spec"]["clusterIP"] == "None", "the Service is not headless"
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}, service
        assert service["spec"]["publishNotReadyAddresses"] is True, service
        assert pod["subdomain"] == service["metadata"]["name"], pod
        (container,) = pod["containers"]
        assert container["command"][0] == "ddp-run", container
        self.name = job["metadata"]["name"]
        self.pods = spec["completions"]
        self.command = container["command"][1:]
        self._variables = {one["name"]: one.get("value", TOKEN) for one in container["env"]}
        self._domain = f"{pod['subdomain']}.default.svc.cluster.local"
        self._ddp_run = str(ddp_run)
        self._folder = Path(folder)

    def start(self, index, command, **variables):
        """The pod with that index; its log is FOLDER/INDEX.log, which a pod that comes back continues."""
        first, own = f"{self.name}-0.{self._domain}", f"{self.name}-{index}.{self._domain} {self.name}-{index}"
        hosts = self._folder / f"{index}.hosts"
        hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {own}\n127.0.0.1 {first}\n")
        return Pod([*NAMESPACES, "sh", "-c", SET_UP, "sh", f"{self.name}-{index}", str(hosts), self._ddp_run, *command],
                   self._folder / f"{index}.log", {**self._variables, **variables, "JOB_COMPLETION_INDEX": str(index)})


class Pod(jobs.Node):
    def terminate(self, number):
        """What Kubernetes does first to a pod that is to go: a signal to its process 1."""
        (first,) = jobs.children(self.process.pid)
        jobs.send(first, number)

    def says(self, text):
        return text in self.log_path.read_text(errors="replace")
