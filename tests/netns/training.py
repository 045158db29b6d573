"""What is trained, and the comparison with a training that nothing disturbs."""
import jobs

LIMIT_S = 1800
# All that can be lost is in it: momentum, dropout's generators, a schedule, an epoch's end. Seconds, when nothing happens.
SHORT = ["--model", "mnist", "--data", "synthetic", "--train-samples", "3072", "--test-samples", "64", "--batch-size", "16",
         "--epochs", "4", "--threads", "1", "--log-every", "1"]


def steps_of_short(nodes):
    """With one worker on each node; with more of them fewer."""
    return 4 * 3072 // (16 * nodes)


# Steps of a few milliseconds. It ends when it is told to.
OPEN_ENDED = ["--model", "toy", "--train-samples", "6000", "--epochs", "1000000", "--batch-size", "5", "--optimizer", "adam",
              "--threads", "1", "--log-every", "10"]
MORE_STEPS = 100


def compare_with_undisturbed(name, cluster):
    """Stops the open-ended training, lets it go on to a step that is known from now on, and trains as far without anything that
    happens, in one process: a number of logical ranks gives the same bytes wherever they are."""
    last = cluster.stop() + MORE_STEPS
    cluster.resume(last)
    summary = cluster.result()
    compare(name, cluster, summary, undisturbed(cluster, last))


def undisturbed(cluster, steps):
    folder = cluster.settings.base / "undisturbed"
    folder.mkdir()
    command = [str(cluster.settings.bin_dir / "ddp-run"), "--standalone", "--nproc-per-node", "1",
               str(cluster.settings.bin_dir / "ddp-train"), *OPEN_ENDED, "--logical-world-size", str(cluster.settings.nodes),
               "--max-steps", str(steps), "--summary", str(folder / "summary.json")]
    node = jobs.Node(command, folder / "node.log", env={"OMP_NUM_THREADS": "1"})
    try:
        if node.wait(LIMIT_S) != 0:
            raise AssertionError(f"the undisturbed training ended with {node.process.returncode}\n{node.tail()}")
    finally:
        node.kill()
    summary = jobs.summary(folder / "summary.json")
    print(f"undisturbed: {summary['steps']} steps, {summary['weights_sha256']}", flush=True)
    return summary["weights_sha256"]


def compare(name, cluster, summary, expected):
    same = summary["weights_sha256"] == expected
    # Without the restarts of the summary: a job that was resumed does not count those from before.
    print(f"{name}: {summary['steps']} steps, {cluster.seconds:.1f} s, "
          f"{'same bytes' if same else 'DIFFERENT BYTES ' + summary['weights_sha256']}", flush=True)
    if not same:
        raise AssertionError(f"the weights differ from the undisturbed run's {expected}")
