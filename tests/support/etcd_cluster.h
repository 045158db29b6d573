#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// A real etcd cluster on the loopback interface that lives as long as the object. Its elections are
// faster than with etcd's defaults, so that leases may be as short as a second.
class EtcdCluster {
 public:
  // The reason why a cluster cannot run here; empty if it can.
  static std::string missing() {
    for (const char* folder : {"/usr/bin/", "/usr/local/bin/"}) {
      if (::access((std::string(folder) + "etcd").c_str(), X_OK) == 0) return "";
    }
    return "etcd is not installed; apt-get install etcd-server";
  }

  // Starts the members. Call wait_until_ready() next, unless the test is about starting. `tls`: a
  // folder with ca.pem, node.pem and node.key; clients then need them too.
  explicit EtcdCluster(int members, std::string tls = "") : tls_(std::move(tls)) {
    for (int i = 0; i < members; ++i) {
      client_ports_.push_back(free_port());
      peer_ports_.push_back(free_port());
    }
    processes_.resize(static_cast<std::size_t>(members));
    for (int i = 0; i < members; ++i) start(i);
  }

  // Starts a member (again, with what it has stored).
  void start(int member) {
    const auto i = static_cast<std::size_t>(member);
    const std::string clients = client_url(client_ports_[i]);
    const std::string members = url(peer_ports_[i]);
    const std::string folder = folder_.path() / name(i);
    std::vector<std::string> command{"etcd", "--log-level=error", "--heartbeat-interval=50",
                                     "--election-timeout=500"};
    for (const std::string& argument :
         {"--name=" + name(i), "--data-dir=" + folder, "--initial-cluster=" + peers(),
          "--listen-client-urls=" + clients, "--advertise-client-urls=" + clients,
          "--listen-peer-urls=" + members, "--initial-advertise-peer-urls=" + members}) {
      command.push_back(argument);
    }
    if (!tls_.empty()) {
      for (const std::string& argument :
           {std::string("--client-cert-auth"), "--trusted-ca-file=" + tls_ + "/ca.pem",
            "--cert-file=" + tls_ + "/node.pem", "--key-file=" + tls_ + "/node.key"}) {
        command.push_back(argument);
      }
    }
    processes_[i] = std::make_unique<Process>(std::move(command));
  }
  void kill(int member, int signal = SIGKILL) {
    Process& process = *processes_[static_cast<std::size_t>(member)];
    process.kill(signal);
    if (signal == SIGKILL) process.wait();
  }

  // Waits until the cluster answers, which it does once it has elected a leader.
  [[nodiscard]] bool wait_until_ready() {
    return wait_until([this] { return !get("/ddp-test").empty(); });
  }

  // "127.0.0.1:2379,127.0.0.1:2380"
  std::string endpoints() const {
    std::string text;
    for (const int port : client_ports_) {
      text += (text.empty() ? "" : ",") + ("127.0.0.1:" + std::to_string(port));
    }
    return text;
  }
  std::vector<std::string> urls() const {
    std::vector<std::string> all;
    for (const int port : client_ports_) all.push_back(client_url(port));
    return all;
  }

  // The index of the leader; -1 while there is none.
  int leader() {
    for (std::size_t i = 0; i < client_ports_.size(); ++i) {
      const Finished status =
          etcdctl({"--endpoints", client_url(client_ports_[i]), "endpoint", "status"});
      // Endpoint, id, version, size, whether it leads, ...
      std::size_t begin = 0;
      for (int field = 0; field < 4; ++field) begin = status.out.find(", ", begin) + 2;
      if (status.status == 0 && status.out.compare(begin, 4, "true") == 0) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  // etcd's own client.
  Finished etcdctl(std::vector<std::string> arguments) const {
    if (!tls_.empty()) {
      arguments.insert(arguments.begin(),
                       {"--cacert=" + tls_ + "/ca.pem", "--cert=" + tls_ + "/node.pem",
                        "--key=" + tls_ + "/node.key"});
    }
    arguments.insert(arguments.begin(), "etcdctl");
    return run(std::move(arguments), {.environment = {{"ETCDCTL_API", "3"}}, .folder = ""});
  }
  // "KEY\nVALUE\n" of all keys with this prefix, or "none"; empty if the cluster does not answer.
  std::string get(const std::string& prefix) const {
    std::string urls_text;
    for (const std::string& one : urls()) urls_text += (urls_text.empty() ? "" : ",") + one;
    const Finished found = etcdctl({"--endpoints", urls_text, "--dial-timeout", "20s",
                                    "--command-timeout", "20s", "get", "--prefix", prefix});
    if (found.status != 0) return "";
    return found.out.empty() ? "none" : found.out;
  }

 private:
  static std::string name(std::size_t member) { return "m" + std::to_string(member); }
  static std::string url(int port) { return "http://127.0.0.1:" + std::to_string(port); }
  std::string client_url(int port) const {
    return (tls_.empty() ? "http://127.0.0.1:" : "https://127.0.0.1:") + std::to_string(port);
  }
  std::string peers() const {
    std::string text;
    for (std::size_t i = 0; i < peer_ports_.size(); ++i) {
      text += (i == 0 ? "" : ",") + name(i) + "=" + url(peer_ports_[i]);
    }
    return text;
  }

  const std::string tls_;
  TempDir folder_;
  std::vector<int> client_ports_;
  std::vector<int> peer_ports_;
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace ddp::test

// Use it in the first line of a test that needs etcd.
#define DDP_NEEDS_ETCD() \
  if (const std::string why = ddp::test::EtcdCluster::missing(); !why.empty()) GTEST_SKIP() << why
