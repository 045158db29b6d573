#include "launcher/hosts/branch.h"

#include <signal.h>
#include <unistd.h>

#include <functional>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include "common/base/exit_codes.h"
#include "launcher/hosts/launcher.h"
#include "launcher/hosts/output_writer.h"

namespace ddp::hosts {

int run_branch(ParentLink& parent) {
  asio::io_context io(1);
  const NodeOrder& order = parent.order();
  auto agent = LaunchAgent::parse(order.launch_agent);
  if (!agent) return kExitInvalidValue;
  Launcher* launcher = nullptr;
  OutputWriter output(io, STDOUT_FILENO, [&] { launcher->resume_reading(); });
  OutputWriter errors(io, STDERR_FILENO, [&] { launcher->resume_reading(); });
  const auto write = [&](OutputWriter& writer, std::string_view line) {
    writer.write(line);
    if (writer.full()) launcher->pause_reading();
  };
  Launcher started(
      io, order, std::move(*agent),
      {.on_report =
           [&](const NodeReport& report) { write(output, encode_line(order.mark, report) + "\n"); },
       .on_line =
           [&](Launcher::Stream stream, std::string_view line) {
             write(stream == Launcher::Stream::kOutput ? output : errors, line);
           },
       .on_all_ended = [&] { io.stop(); }});
  launcher = &started;
  parent.watch(io, {.on_signal = [&](int signal) { started.signal(signal); },
                    .on_hang_up = [&] { started.hang_up(); }});
  asio::signal_set signals(io, SIGTERM, SIGINT, SIGHUP);
  signals.add(SIGQUIT);
  std::function<void()> wait_for_signal = [&] {
    signals.async_wait([&](const std::error_code& error, int signal) {
      if (error) return;
      started.signal(signal);
      wait_for_signal();
    });
  };
  wait_for_signal();
  started.start(true);
  io.run();
  parent.stop_watching();
  return kExitSuccess;
}

}  // namespace ddp::hosts
