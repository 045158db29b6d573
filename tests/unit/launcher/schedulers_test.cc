// What ddp-run reads of schedulers other than SLURM, and what it makes of it.
#include <string>

#include "launcher/plan/job_plan.h"
#include "launcher/schedulers/kubernetes.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/launcher/ddp_run_lines.h"

namespace ddp::flags {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// As in the messages of ddp-run.
std::string refusal(const Arguments& arguments, const Environment& environment) {
  const auto options = parse(arguments, environment);
  EXPECT_FALSE(options);
  if (options) return "";
  EXPECT_EQ(exit_code_of(options.error()), kExitInvalidValue);
  return options.error().message;
}

machine::Machine machine_named(const std::string& name, const std::string& full_name,
                               int gpus = 0) {
  machine::Machine machine{name, [] { return 6; }, [gpus](std::string_view) { return gpus; },
                           [name](const std::string& host) {
                             const bool local = host.substr(0, host.find('.')) == name;
                             return machine::HostPlace{local || host == "127.0.0.1",
                                                       host == "127.0.0.1",
                                                       local ? "10.0.0.7" : host};
                           }};
  machine.full_name = [full_name] { return full_name; };
  return machine;
}

// Pod 2 of an Indexed Job whose manifest says how many there are.
Environment pod(const std::string& index = "2") {
  return {{"JOB_COMPLETION_INDEX", index}, {"PET_NNODES", "4"}};
}

TEST(Kubernetes, TheIndexIsTheRankAndTheFirstPodHosts) {
  const Options options = options_of({"train"}, pod());
  ASSERT_TRUE(options.placement);
  EXPECT_EQ(options.spec.rules.min_nodes, 4);
  EXPECT_EQ(options.spec.rules.max_nodes, 4);
  EXPECT_EQ(options.spec.node_rank, 2);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kDevices);
  const auto third =
      plan::plan_job(options, machine_named("train-2", "train-2.svc.ns.svc.cluster.local", 8));
  ASSERT_TRUE(third);
  EXPECT_FALSE(third->host);
  EXPECT_EQ(third->spec.coordinator_host, "train-0.svc.ns.svc.cluster.local");
  EXPECT_EQ(third->spec.coordinator_port, 29400);
  EXPECT_EQ(third->spec.job_id, "train");
  EXPECT_EQ(third->spec.nproc, 8);
  EXPECT_EQ(third->scheduler, "Kubernetes (JOB_COMPLETION_INDEX=2)");
  const auto first = plan::plan_job(options_of({"--master-port", "4711", "train"}, pod("0")),
                                    machine_named("train-0", "train-0.svc.ns.svc.cluster.local"));
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->host);
  EXPECT_EQ(first->spec.coordinator_host, "10.0.0.7");
  EXPECT_EQ(first->spec.coordinator_port, 4711);
}

TEST(Kubernetes, FlagsWinOverVariablesAndBothOverTheIndex) {
  const Environment kubeflow{{"JOB_COMPLETION_INDEX", "2"}, {"PET_NNODES", "3"},
                             {"PET_NODE_RANK", "1"},        {"PET_MASTER_ADDR", "train-master-0"},
                             {"PET_MASTER_PORT", "23456"},  {"PET_NPROC_PER_NODE", "2"}};
  const Options options = options_of({"--nproc-per-node", "5", "train"}, kubeflow);
  EXPECT_EQ(options.spec.node_rank, 1);
  EXPECT_EQ(options.spec.rules.max_nodes, 3);
  EXPECT_EQ(options.nproc.number, 5);
  ASSERT_TRUE(options.endpoint);
  EXPECT_EQ(options.endpoint->host, "train-master-0");
  EXPECT_EQ(options.endpoint->port, 23456);
  const Options by_flags = options_of(
      {"--node-rank", "0", "--rdzv-endpoint", "head:1", "--rdzv-id", "mine", "train"}, kubeflow);
  EXPECT_EQ(by_flags.spec.node_rank, 0);
  EXPECT_EQ(by_flags.endpoint->host, "head");
  EXPECT_EQ(by_flags.job_id, "mine");
}

TEST(Kubernetes, WithAnEndpointTheNumberOfWorkersIsTorchruns) {
  const Options options = options_of({"--rdzv-endpoint", "train-0.svc:29400", "train"}, pod());
  EXPECT_EQ(options.spec.node_rank, 2);
  EXPECT_EQ(options.nproc.kind, ProcessCount::Kind::kNumber);
  EXPECT_EQ(options.nproc.number, 1);
  const Options alone =
      options_of({"--rdzv-endpoint", "localhost:0", "train"}, {{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_FALSE(alone.placement);
  EXPECT_EQ(alone.spec.rules.max_nodes, 1);
}

TEST(Kubernetes, APodMayBeAJobOfItsOwn) {
  const Options one = options_of({"--nnodes", "1", "train"}, {{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_FALSE(one.placement);
  EXPECT_EQ(one.spec.rules.max_nodes, 1);
  const Options alone = options_of({"--standalone", "train"}, {{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_FALSE(alone.placement);
}

TEST(Kubernetes, SparePodsHaveNoRank) {
  const auto spare = options_of({"--nnodes", "1:2", "train"}, pod("3"));
  ASSERT_TRUE(spare.placement);
  EXPECT_EQ(spare.spec.node_rank, -1);
  const auto plan = plan::plan_job(spare, machine_named("train-3", "train-3.svc.ns"));
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->host);
}

TEST(Kubernetes, WhatIsMissingIsNamedWithTheRemedy) {
  EXPECT_EQ(refusal({"train"}, {{"JOB_COMPLETION_INDEX", "2"}}),
            "JOB_COMPLETION_INDEX=2: Kubernetes does not say how many nodes the job has; give the "
            "container the variable PET_NNODES with the Job's number of completions, or 1 if each "
            "pod is a job of its own (or --nnodes)");
  EXPECT_EQ(refusal({"train"}, pod("two")),
            "JOB_COMPLETION_INDEX=two: not a number from 0 to 999999");
  const auto no_domain =
      plan::plan_job(options_of({"train"}, pod()), machine_named("train-2", "train-2"));
  ASSERT_FALSE(no_domain);
  EXPECT_EQ(exit_code_of(no_domain.error()), kExitInvalidValue);
  EXPECT_THAT(no_domain.error().message,
              HasSubstr("JOB_COMPLETION_INDEX=2: this pod's full name is train-2, and other pods"));
  EXPECT_THAT(no_domain.error().message, HasSubstr("headless Service"));
}

TEST(Kubernetes, TheFirstPodsNameFollowsFromTheOwnOne) {
  // A JobSet's pod: JOBSET-REPLICATEDJOB-JOB-POD.SUBDOMAIN.
  const auto in_job_set = schedulers::first_pod("run7-workers-0-12.run7.ns.svc.cluster.local", 12);
  ASSERT_TRUE(in_job_set);
  EXPECT_EQ(in_job_set->host, "run7-workers-0-0.run7.ns.svc.cluster.local");
  EXPECT_EQ(in_job_set->job, "run7-workers-0");
  for (const char* name : {"web.svc.ns", "train-12.svc", "-2.svc", "train2.svc"}) {
    const auto wrong = schedulers::first_pod(name, 2);
    ASSERT_FALSE(wrong) << name;
    EXPECT_THAT(wrong.error().message, HasSubstr("not JOB-2"));
  }
}

TEST(Kubernetes, AWorkerOfAnotherDdpRunIsInNoJob) {
  Environment worker = pod();
  worker["DDP_NODE_ID"] = "x";
  worker["PET_NNODES"] = "1";
  EXPECT_FALSE(options_of({"train"}, worker).placement);
  Environment step = {{"JOB_COMPLETION_INDEX", "2"}, {"SLURM_STEP_ID", "4294967291"}};
  EXPECT_FALSE(options_of({"train"}, step).placement);
}

// Rank 1 of `mpirun -np 2`, as many of them on this machine.
Environment mpi(const std::string& here, const std::string& local_rank = "0") {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", here},
          {"OMPI_COMM_WORLD_LOCAL_RANK", local_rank},
          {"PMIX_NAMESPACE", "prterun-n1-77@1"}};
}

TEST(Mpi, OneDdpRunOnEachMachineNeedsOnlyAPlaceToMeet) {
  Environment environment = mpi("1");
  EXPECT_EQ(refusal({"train"}, environment),
            "OMPI_COMM_WORLD_RANK=1: Open MPI does not say where the nodes meet; set MASTER_ADDR "
            "to the machine of rank 0 for all of them (mpirun -x MASTER_ADDR=node1, or -genv "
            "MASTER_ADDR node1), or name it with --rdzv-endpoint");
  environment["MASTER_ADDR"] = "n1";
  const auto plan =
      plan::plan_job(options_of({"train"}, environment), machine_named("n2", "n2", 4));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->spec.rules.min_nodes, 2);
  EXPECT_EQ(plan->spec.node_rank, 1);
  EXPECT_EQ(plan->spec.nproc, 4);
  EXPECT_FALSE(plan->host);
  EXPECT_EQ(plan->spec.coordinator_host, "n1");
  EXPECT_EQ(plan->spec.job_id, "prterun-n1-77@1");
  EXPECT_EQ(plan->scheduler, "Open MPI (OMPI_COMM_WORLD_RANK=1)");
}

TEST(Mpi, OnOneMachineTheyMeetOnLoopback) {
  EXPECT_THAT(refusal({"train"}, mpi("2", "1")),
              HasSubstr("Open MPI has started 2 ddp-runs on this machine, where one starts all "
                        "workers; start one on each machine (mpirun --map-by ppr:1:node"));
  const Arguments line{"--nproc-per-node", "3", "train"};
  const auto plan = plan::plan_job(options_of(line, mpi("2", "1")), machine_named("n1", "n1"));
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->host);
  EXPECT_EQ(plan->spec.coordinator_host, "127.0.0.1");
  EXPECT_EQ(plan->spec.nproc, 3);
  Environment other = mpi("2", "1");
  other["PMIX_NAMESPACE"] = "prterun-n1-78@1";
  other["OMPI_COMM_WORLD_RANK"] = "0";
  const auto first = plan::plan_job(options_of(line, other), machine_named("n1", "n1"));
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->host);
  EXPECT_EQ(first->bind_address, "127.0.0.1");
  EXPECT_NE(first->spec.coordinator_port, plan->spec.coordinator_port);
}

TEST(Mpi, MpirunIsNearerThanWhatHasStartedIt) {
  Environment environment = mpi("2", "1");
  environment["JOB_COMPLETION_INDEX"] = "0";
  // Part of a step: mpirun starts its helper on another node by srun.
  environment["SLURM_STEP_ID"] = "0";
  environment["SLURM_PROCID"] = "0";
  const Options options = options_of({"--nproc-per-node", "1", "train"}, environment);
  ASSERT_TRUE(options.placement);
  EXPECT_EQ(options.placement->scheduler, "Open MPI");
  EXPECT_FALSE(options.step);
}

TEST(Mpi, FlagsForMoreNodesThanMpirunHasStartedGiveTheRank) {
  EXPECT_THAT(refusal({"--nnodes", "4", "--nproc-per-node", "1", "train"}, mpi("2", "1")),
              HasSubstr("--nnodes 4: Open MPI has started 2 here and elsewhere"));
  const Options options = options_of(
      {"--nnodes", "4", "--node-rank", "3", "--master-addr", "n1", "train"}, mpi("2", "1"));
  EXPECT_FALSE(options.placement);
  EXPECT_EQ(options.spec.node_rank, 3);
}

// Task 1 of `flux run -N4 -n4`.
Environment flux_task() {
  return {{"FLUX_TASK_RANK", "1"},
          {"FLUX_JOB_SIZE", "4"},
          {"FLUX_JOB_NNODES", "4"},
          {"FLUX_TASK_LOCAL_ID", "0"},
          {"FLUX_JOB_ID", "f3ETxsR9H"},
          {"PMI_RANK", "1"},
          {"PMI_SIZE", "4"}};
}

TEST(Flux, ATaskOnEachNodeNeedsOnlyAPlaceToMeet) {
  Environment task = flux_task();
  EXPECT_THAT(refusal({"train"}, task),
              HasSubstr("FLUX_TASK_RANK=1: Flux does not say where the nodes meet; name the first "
                        "task's node: flux run ... sh -c 'MASTER_ADDR=$(flux hostlist -ln0)"));
  task["MASTER_ADDR"] = "n0";
  task["SLURM_STEP_ID"] = "0";  // Of the srun that has started Flux.
  task["SLURM_PROCID"] = "1";
  const Options options = options_of({"train"}, task);
  ASSERT_TRUE(options.placement);
  EXPECT_FALSE(options.step);
  EXPECT_EQ(options.spec.node_rank, 1);
  EXPECT_EQ(options.spec.rules.max_nodes, 4);
  EXPECT_EQ(options.job_id, "f3ETxsR9H");
  EXPECT_EQ(options.endpoint->host, "n0");
  EXPECT_EQ(options.scheduler, "Flux (FLUX_TASK_RANK=1)");
}

TEST(Flux, SeveralTasksOnANodeAreAMistake) {
  Environment task = flux_task();
  task["FLUX_JOB_NNODES"] = "2";
  EXPECT_THAT(
      refusal({"train"}, task),
      HasSubstr("Flux has started 2 ddp-runs on this machine, where one starts all workers; "
                "start one on each machine (flux run -N NODES -n NODES)"));
  // On one node they can be what is meant, and find each other.
  task["FLUX_JOB_NNODES"] = "1";
  const auto plan =
      plan::plan_job(options_of({"--nproc-per-node=1", "train"}, task), machine_named("n1", "n1"));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->spec.coordinator_host, "127.0.0.1");
  task["FLUX_JOB_SIZE"] = "0";
  EXPECT_THAT(refusal({"train"}, task), HasSubstr("FLUX_JOB_SIZE=0: not a number from 1 to "));
}

// Task 2 of `blaunch ddp-run`.
Environment blaunch_task(const std::string& hosts) {
  return {{"LSB_JOBID", "9"},
          {"LSF_PM_TASKID", "2"},
          {"LSB_MCPU_HOSTS", hosts},
          {"LSB_DJOB_HOSTFILE", "/no/file"}};
}

TEST(Lsf, ATaskOfBlaunchKnowsAllWithOneSlotAHost) {
  const Options options = options_of({"train"}, blaunch_task("n1 1 n2 1 n3 1"));
  EXPECT_EQ(options.spec.node_rank, 1);
  EXPECT_EQ(options.spec.rules.max_nodes, 3);
  const auto plan = plan::plan_job(options, machine_named("n2", "n2"));
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->host);
  EXPECT_EQ(plan->spec.coordinator_host, "n1");
  EXPECT_EQ(plan->spec.coordinator_port, 29400);
  EXPECT_EQ(plan->spec.job_id, "9");
}

TEST(Lsf, WithSeveralSlotsAHostTheNumberOfTasksIsOpen) {
  EXPECT_THAT(refusal({"train"}, blaunch_task("n1 4 n2 4")),
              HasSubstr("LSF_PM_TASKID=2: LSF does not say how many nodes the job has; the hosts "
                        "have several slots; start ddp-run once on each host (blaunch -z"));
  const Options options = options_of({"--nnodes=2", "train"}, blaunch_task("n1 4 n2 4"));
  EXPECT_EQ(options.spec.node_rank, 1);
  EXPECT_EQ(options.placement->first_host, "n1");
  EXPECT_THAT(refusal({"--nnodes=2", "train"}, blaunch_task("")), HasSubstr("set MASTER_ADDR"));
}

TEST(Pbs, ATaskOfPbsdshHasItsRankFromPbs) {
  Environment task{{"PBS_JOBID", "7.head"},
                   {"PBS_NODENUM", "1"},
                   {"PBS_TASKNUM", "1"},
                   {"PBS_NODEFILE", "/no/file"}};
  EXPECT_THAT(refusal({"train"}, task),
              AllOf(HasSubstr("PBS_NODENUM=1: PBS does not say how many"),
                    HasSubstr("number of different hosts in PBS_NODEFILE")));
  task["PET_NNODES"] = "2";
  EXPECT_THAT(refusal({"train"}, task), HasSubstr("PBS_NODENUM=1: PBS does not say where"));
  task["MASTER_ADDR"] = "n1";
  EXPECT_EQ(options_of({"train"}, task).spec.node_rank, 1);
  EXPECT_EQ(options_of({"train"}, task).job_id, "7.head");
  // On the first node, the script is task 1.
  task["PBS_NODENUM"] = "0";
  task["PBS_TASKNUM"] = "2";
  EXPECT_EQ(options_of({"train"}, task).spec.node_rank, 0);
}

TEST(BatchScript, ItsHostsStandForHosts) {
  const test::TempDir folder;
  const std::string file = folder.write("nodes", "n1\nn1\nn2.cluster\nn1\n");
  const Environment pbs{
      {"PBS_JOBID", "7.head"}, {"PBS_NODEFILE", file}, {"PBS_NODENUM", "0"}, {"PBS_TASKNUM", "1"}};
  const Options options = options_of({"train"}, pbs);
  EXPECT_THAT(options.host_list,
              testing::ElementsAre(hosts::Host{"n1", 0}, hosts::Host{"n2.cluster", 0}));
  EXPECT_EQ(options.spec.rules.min_nodes, 2);
  EXPECT_EQ(options.job_id, "7.head");
  EXPECT_EQ(options.scheduler, "PBS (PBS_NODEFILE=" + file + ")");
  const Options by_flags = options_of({"--hosts=a,b", "--rdzv-id=mine", "train"}, pbs);
  EXPECT_EQ(by_flags.host_list.front().name, "a");
  EXPECT_EQ(by_flags.job_id, "mine");
  for (const Arguments& line : {Arguments{"--standalone"},
                                {"--nnodes=1"},
                                {"--nnodes=2", "--rdzv-endpoint=n1:1"},
                                {"--nnodes=2", "--node-rank=1", "--master-addr=n1"}}) {
    Arguments all = line;
    all.emplace_back("train");
    EXPECT_TRUE(options_of(all, pbs).host_list.empty()) << line.front();
  }
  Environment lsf{{"LSB_JOBID", "9"}, {"LSB_DJOB_HOSTFILE", file}};
  EXPECT_EQ(options_of({"train"}, lsf).host_list.size(), 2U);
  for (const char* other : {"DDP_NODE_ID", "SLURM_JOB_ID"}) {
    Environment inner = pbs;
    inner[other] = "1";
    EXPECT_TRUE(options_of({"train"}, inner).host_list.empty()) << other;
  }
}

TEST(BatchScript, OfOneHostIsAJobOfOneNode) {
  const test::TempDir folder;
  const Options options = options_of(
      {"train"}, {{"LSB_JOBID", "9"}, {"LSB_DJOB_HOSTFILE", folder.write("nodes", "n1\nn1\n")}});
  EXPECT_TRUE(options.host_list.empty());
  EXPECT_EQ(options.spec.rules.max_nodes, 1);
}

TEST(BatchScript, AFileThatCannotBeReadOrIsWrongIsNamed) {
  EXPECT_EQ(
      refusal({"train"}, {{"PBS_JOBID", "7"}, {"PBS_NODEFILE", "/no/file"}}),
      "PBS_NODEFILE=/no/file: cannot be read, so the job's hosts are not known; name them with "
      "--hosts, or add --standalone to run on this machine alone");
  const test::TempDir folder;
  EXPECT_THAT(refusal({"train"}, {{"PBS_JOBID", "7"},
                                  {"PBS_NODEFILE", folder.write("nodes", "n1\n-oProxy\n")}}),
              HasSubstr("nodes: '-oProxy' is not a host name"));
}

TEST(Schedulers, MasterAddrSaysWhereTheNodesMeet) {
  Environment named = pod("0");
  named["MASTER_ADDR"] = "head.example";
  const Options options = options_of({"train"}, named);
  ASSERT_TRUE(options.endpoint);
  EXPECT_EQ(options.endpoint->host, "head.example");
  EXPECT_EQ(options.endpoint->port, 29400);
  EXPECT_EQ(options.endpoint_flag, "MASTER_ADDR=head.example");
  // It leads to node 0, whatever that is called there.
  const auto plan = plan::plan_job(options, machine_named("n1", "n1"));
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->host);
  named["MASTER_PORT"] = "4711";
  EXPECT_EQ(options_of({"train"}, named).endpoint->port, 4711);
  EXPECT_EQ(options_of({"--rdzv-endpoint", "other:1", "train"}, named).endpoint->host, "other");
  EXPECT_EQ(options_of({"--master-port", "4712", "train"}, named).endpoint->port, 4712);
  named["MASTER_PORT"] = "0";
  EXPECT_THAT(refusal({"train"}, named), HasSubstr("MASTER_PORT=0: not a whole number"));
  named["MASTER_ADDR"] = "a b";
  EXPECT_THAT(refusal({"train"}, named), HasSubstr("MASTER_ADDR=a b: "));
}

}  // namespace
}  // namespace ddp::flags
