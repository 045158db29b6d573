#include "launcher/slurm/step_token.h"

#include <cstdio>
#include <utility>

#include "common/auth/crypto_library.h"
#include "common/base/exit_error.h"
#include "common/config/rdzv_token.h"
#include "launcher/node/notices.h"
#include "launcher/slurm/munge.h"

namespace ddp::slurm {

void make_step_token(plan::JobPlan& plan) {
  if (plan.step_ports.empty() || plan::is_guarded(plan.spec)) return;
  const auto crypto = auth::CryptoLibrary::load();
  Secret token = config::make_token();
  auto sealed = crypto ? seal(token.reveal()) : Result<std::string>(crypto.error());
  if (!sealed) {
    if (sealed.error().code != Errc::kNotFound) {
      node::print_notice("this job has no secret of its own: " + sealed.error().message);
    }
    return;
  }
  plan.spec.rdzv_token = std::move(token);
  plan.sealed_token = std::move(*sealed);
}

Result<void> take_step_token(plan::JobPlan& plan, const std::optional<std::string>& sealed) {
  if (plan::is_guarded(plan.spec)) return {};
  if (!sealed) {
    if (!seal("")) return {};
    return exit_error(kExitRefused,
                      "{}: what answers on the first node, {}, does not show this job's secret, "
                      "although MUNGE works here; give all nodes the same --rdzv-token-file",
                      plan.endpoint_flag, plan.spec.coordinator_host);
  }
  const auto refused = [&plan](const Error& error) {
    return exit_error(kExitRefused, "{}: the secret of the job on its first node, {}: {}",
                      plan.endpoint_flag, plan.spec.coordinator_host, error.message);
  };
  auto text = unseal(*sealed);
  if (!text) return refused(text.error());
  auto token = config::parse_token(*text);
  if (!token) return refused(token.error());
  if (const auto crypto = auth::CryptoLibrary::load(); !crypto) return refused(crypto.error());
  plan.spec.rdzv_token = std::move(*token);
  return {};
}

}  // namespace ddp::slurm
