// `ds launch`: a program as many ranks on this host.
//
// Two processes stand above the ranks. This one waits and passes signals on; the one below it runs
// the job (launch_job.h). Each adopts what is orphaned below it, and each sees when the other is
// killed, so that either can end every process of the job, whatever became of the other.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>

#include "command.h"
#include "files.h"
#include "format.h"
#include "launch_job.h"
#include "launch_socket.h"
#include "process_tree.h"

namespace tool {
namespace {

std::string new_job_name() {
  std::random_device random;
  return format("ds-%d-%08x%08x", static_cast<int>(::getpid()), random(), random());
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) {
    throw Failure(std::string("cannot find the CPUs for --bind: ") + std::strerror(errno));
  }
  std::vector<int> cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  }
  return cpus;
}

// Waits for the job below; signals that come meanwhile are its business.
int wait_for_job(pid_t job, const sigset_t& signals) {
  for (;;) {
    siginfo_t info;
    if (::sigwaitinfo(&signals, &info) < 0) continue;
    if (info.si_signo != SIGCHLD) {
      ::kill(job, info.si_signo);
      continue;
    }
    int status = 0;
    const pid_t ended = ::waitpid(job, &status, WNOHANG);
    if (ended == 0) continue;
    const int left = kill_descendants();
    if (left > 0) throw Failure(format("%d processes of the ranks cannot be killed", left));
    if (ended == job && WIFEXITED(status)) return WEXITSTATUS(status);
    throw Failure("the process above the ranks was ended by " +
                  (WIFSIGNALED(status) ? describe_signal(WTERMSIG(status)) : "itself") +
                  "; the ranks were killed");
  }
}

int run(LaunchOptions options) {
  if (options.command.empty()) {
    throw UsageError("what to run is missing: ds launch -n N -- COMMAND ARGS...");
  }
  if (!options.rank_logs.empty()) make_folder(options.rank_logs);
  const ReservedPort port(options.master_port);
  RankStart start;
  if (options.bind) start.cpus = usable_cpus();
  start.options = std::move(options);
  start.port = port.number();
  start.job = new_job_name();
  MeetingSocket meeting;
  start.meeting_port = meeting.port();
  start.token = new_job_token();

  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    sigaddset(&signals, number);
  }
  struct sigaction usual = {}, ignore = {};
  usual.sa_handler = SIG_DFL;
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGCHLD, &usual, nullptr);
  ::sigaction(SIGPIPE, &ignore, &start.pipe);
  // The job is no foreground group of the terminal, and yet writes to it.
  ::sigaction(SIGTTOU, &ignore, &start.tty);
  ::sigprocmask(SIG_BLOCK, &signals, &start.signals);
  adopt_orphans();

  int lifeline[2];
  if (::pipe2(lifeline, O_CLOEXEC) != 0) {
    throw Failure(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t job = ::fork();
  if (job < 0) throw Failure(std::string("cannot start a process: ") + std::strerror(errno));
  if (job == 0) {
    ::close(lifeline[1]);
    ::setpgid(0, 0);  // Ctrl-C reaches the process above alone, which passes it on once
    return run_job(start, lifeline[0], meeting);
  }
  meeting.close();  // rank 0 alone holds it
  ::close(lifeline[0]);
  const int status = wait_for_job(job, signals);
  ::close(lifeline[1]);
  return status;
}

CLI::Validator seconds_above_zero() {
  return {[](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            if (text.empty() || *end != '\0' || !(value > 0) || value > 1e8) {
              return "'" + text + "' is no number of seconds above 0";
            }
            return std::string();
          },
          "SECONDS"};
}

}  // namespace

void add_launch(CLI::App& app, Action& action, std::vector<std::string> command) {
  CLI::App* sub = app.add_subcommand("launch", "Run a program as many ranks on this host");
  auto options = std::make_shared<LaunchOptions>();
  LaunchOptions& o = *options;
  o.command = std::move(command);
  auto before = std::make_shared<std::vector<std::string>>();
  sub->add_option("command", *before, "the program that every rank runs, and its arguments")
      ->type_name("-- COMMAND ARGS");
  sub->add_option("-n,--ranks", o.ranks, "how many ranks")
      ->check(at_least(1))
      ->check(CLI::Validator(
          [](std::string& text) {
            return text.size() > 5 || std::stol(text) > 10000 ? text + " ranks are too many"
                                                              : std::string();
          },
          ""))
      ->type_name("N")
      ->required();
  sub->add_option("--rank-logs", o.rank_logs,
                  "write what rank R prints to DIR/rank-R.out and DIR/rank-R.err instead of "
                  "standard output and error")
      ->type_name("DIR");
  sub->add_option("--timeout", o.timeout, "end the run after so long, with status 124")
      ->check(seconds_above_zero())
      ->type_name("SECONDS");
  sub->add_option("--grace", o.grace,
                  "time between SIGTERM and SIGKILL for ranks that are ended: 10 when a rank has "
                  "failed; given, also after a signal from outside, which has no limit otherwise")
      ->check(CLI::Range(0.0, 1e8))
      ->type_name("SECONDS");
  sub->add_option("--master-port", o.master_port,
                  "MASTER_PORT, for programs that open it themselves; default: a free one")
      ->check(CLI::Range(1, 65535))
      ->type_name("P");
  sub->add_flag("--bind", o.bind, "give every rank its own share of the CPUs");
  sub->callback([&action, options, before] {
    action = [options, before] {
      if (!before->empty()) {
        throw UsageError("'" + before->front() +
                         "' stands before '--': ds launch -n N -- COMMAND "
                         "ARGS...");
      }
      return run(*options);
    };
  });
}

}  // namespace tool
