#include "worker/runtime/point_to_point.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/errc.h"
#include "worker/runtime/post_office.h"

namespace ddp {

std::shared_ptr<PointToPoint> PointToPoint::make(Transport& transport, Meeting meeting, Round round,
                                                 Options options) {
  return std::make_shared<PostOffice>(transport, std::move(meeting), round, std::move(options));
}

}  // namespace ddp
