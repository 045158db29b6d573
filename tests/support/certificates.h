#pragma once

#include <stdexcept>
#include <string>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace ddp::test {

// A certificate authority and the certificates that it signs, made with the program openssl. Files
// are NAME.pem and NAME.key; those of the authority are ca.pem and ca.key.
class Authority {
 public:
  Authority() {
    make(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key "
        "-out ca.pem -subj /CN=test-authority -days 2");
  }

  enum class Validity { kNow, kOver };

  // `names` in openssl's form: "DNS:node0,IP:127.0.0.1". Uses "openssl ca", because all releases
  // accept past dates there; newer ones refuse a negative -days.
  void issue(const std::string& name, const std::string& names,
             Validity validity = Validity::kNow) const {
    const std::string dates = validity == Validity::kNow
                                  ? "-days 2"
                                  : "-startdate 20200101000000Z -enddate 20200102000000Z";
    folder_.write(name + ".ext", "subjectAltName=" + names + "\n");
    folder_.write("ca.cnf",
                  "[ca]\ndefault_ca=own\n"
                  "[own]\ndatabase=index\nnew_certs_dir=.\ncertificate=ca.pem\nprivate_key=ca.key\n"
                  "default_md=sha256\nrand_serial=yes\nunique_subject=no\npolicy=any\n"
                  "[any]\ncommonName=supplied\n");
    make("touch index && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " +
         name + ".key -out " + name + ".csr -subj /CN=" + name +
         " && openssl ca -batch -notext -config ca.cnf -in " + name + ".csr -out " + name +
         ".pem " + dates + " -extfile " + name + ".ext");
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
