#pragma once

#include <stdexcept>
#include <string>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// An authority and the certificates that it signs, made by the program openssl. Files NAME.pem and
// NAME.key; the authority's are ca.pem and ca.key.
class Authority {
 public:
  Authority() {
    make(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key "
        "-out ca.pem -subj /CN=test-authority -days 2");
  }

  // `names` as openssl writes them: "DNS:node0,IP:127.0.0.1". `days`: -1 makes one that is over.
  void issue(const std::string& name, const std::string& names, int days = 2) const {
    folder_.write(name + ".ext", "subjectAltName=" + names + "\n");
    make("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + name +
         ".key -out " + name + ".csr -subj /CN=" + name + " && openssl x509 -req -in " + name +
         ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -out " + name + ".pem -days " +
         std::to_string(days) + " -extfile " + name + ".ext");
  }

  std::string ca() const { return file("ca.pem"); }
  std::string certificate(const std::string& name) const { return file(name + ".pem"); }
  std::string key(const std::string& name) const { return file(name + ".key"); }

 private:
  std::string file(const std::string& name) const { return folder_.path() / name; }
  void make(const std::string& command) const {
    ProcessOptions options;
    options.folder = folder_.path();
    const Finished done = run({"sh", "-c", command}, options);
    if (done.status != 0) throw std::runtime_error(command + ": " + done.err);
  }

  TempDir folder_;
};

}  // namespace ddp::test
