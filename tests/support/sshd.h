#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/support/listener.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// A real sshd on two addresses of the loopback interface, like two hosts, with its own keys, port
// and files, and an `ssh` that finds them under the names hosta and hostb. "gone" is an address
// where nothing listens; "stranger" is hosta with a host key that is not known.
class Sshd {
 public:
  // `mark`: NAME=VALUE in the environment of every session.
  explicit Sshd(const std::string& mark) : port_(free_port()) {
    for (const char* key : {"host", "user", "other"}) make_key(key);
    write("authorized_keys", read("user.pub"));
    write("sshd_config",
          "ListenAddress 127.0.0.2\nListenAddress 127.0.0.3\nPort " + std::to_string(port_) +
              "\nHostKey " + path("host") + "\nAuthorizedKeysFile " + path("authorized_keys") +
              "\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
              "KbdInteractiveAuthentication no\nPermitRootLogin yes\nAcceptEnv DDP_TEST_*\n");
    write("ssh_config",
          "Host hosta stranger\n  HostName 127.0.0.2\nHost hostb\n  HostName 127.0.0.3\n"
          "Host gone\n  HostName 127.0.0.4\n"
          "Host stranger\n  IdentityFile " +
              path("other") + "\nHost hosta hostb gone\n  IdentityFile " + path("user") +
              "\nHost *\n  Port " + std::to_string(port_) +
              "\n  IdentitiesOnly yes\n  IdentityAgent none\n  GlobalKnownHostsFile none\n"
              "  UserKnownHostsFile " +
              path("known_hosts") + "\n  StrictHostKeyChecking yes\n  SetEnv " + mark + "\n");
    std::string known;
    for (const char* address : {"127.0.0.2", "127.0.0.3"}) {
      known += "[" + std::string(address) + "]:" + std::to_string(port_) + " " + read("host.pub");
    }
    write("known_hosts", known);
    std::filesystem::create_directory(path("bin"));
    folder_.script("bin/ssh", "exec /usr/bin/ssh -F " + path("ssh_config") + " \"$@\"\n");
    // sshd needs this folder when root runs it; systems without its service lack it.
    if (::geteuid() == 0) std::filesystem::create_directory("/run/sshd");
    daemon_ = std::make_unique<Process>(
        std::vector<std::string>{"/usr/sbin/sshd", "-D", "-e", "-f", path("sshd_config")});
    if (!daemon_->complains("listening on 127.0.0.2") ||
        !daemon_->complains("listening on 127.0.0.3")) {
      throw std::runtime_error("sshd does not run: " + daemon_->err());
    }
  }

  // PATH with that ssh in front.
  std::string search_path() const { return path("bin") + ":" + std::getenv("PATH"); }
  int port() const { return port_; }
  std::string log() const { return daemon_->err(); }

 private:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  std::string read(const std::string& name) const { return folder_.read(name); }
  void make_key(const std::string& name) const {
    const Finished made =
        run({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path(name)});
    if (made.status != 0) throw std::runtime_error("ssh-keygen: " + made.err);
  }

  TempDir folder_;
  int port_;
  std::unique_ptr<Process> daemon_;
};

}  // namespace ddp::test
