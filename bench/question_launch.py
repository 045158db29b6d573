"""How long does a launch of two workers that do nothing take, from the command to its end?"""
import harness


def figures():
    harness.require(harness.DDP_RUN, "mpirun", harness.TORCHRUN[0])
    ours = [harness.DDP_RUN, "--standalone", "--nproc-per-node", "2", "--no-python", "true"]
    mpirun = [*harness.MPIRUN, "-np", "2", "true"]
    torchrun = [*harness.TORCHRUN, "--standalone", "--nproc_per_node", "2", "--no_python", "true"]
    fast = harness.alternate({"ours": lambda: harness.seconds(ours), "mpirun": lambda: harness.seconds(mpirun)}, rounds=21)
    yield harness.figure("two workers, true", fast["ours"], fast["mpirun"], "mpirun", "s", 1.0)
    slow = harness.alternate({"ours": lambda: harness.seconds(ours), "torchrun": lambda: harness.seconds(torchrun)}, rounds=5)
    yield harness.figure("two workers, true", slow["ours"], slow["torchrun"], "torchrun", "s", 30)
