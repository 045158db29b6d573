#pragma once

#include <string_view>

#include "common/config/job_spec.h"
#include "common/wire/shm_layout.h"

namespace ddp::agent {

// The key with which the workers of a round guard their connections to other nodes: from the job's
// token and the round's nonce (wire::RoundStart::link_nonce; empty: no key). Whether they encrypt
// is the job's choice: with --tls-cert they do. CryptoLibrary::load() must have succeeded if there
// is a nonce. Pure.
wire::LinkKey link_key(const config::JobSpec& spec, std::string_view nonce);

}  // namespace ddp::agent
