#include "launch_job.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "ds.hpp"
#include "failure.h"
#include "format.h"
#include "process_tree.h"

namespace tool {
namespace {

using Clock = std::chrono::steady_clock;

class Job {
 public:
  Job(RankStart start, int lifeline, MeetingSocket& meeting);
  int run();

 private:
  void start_ranks();
  void collect();
  void rank_ended(Rank& rank, int wait_status);
  void take_signal();
  void wait_for_events();
  void watch_times();
  void begin_ending();
  const Rank& cause() const;
  double failed_after(const Rank& rank) const;
  void tell();
  bool ranks_left() const;
  OutputQueue& errors() { return separate_errors_ ? err_ : out_; }
  void say(const std::string& text);
  double since_start(int64_t nanoseconds) const {
    const Clock::time_point at{std::chrono::nanoseconds(nanoseconds)};
    return std::chrono::duration<double>(at - began_).count();
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  std::string ranks_running() const;
  std::deque<std::string> last_errors(const Rank& rank) const;

  const RankStart start_;
  const LaunchOptions& options_;
  MeetingSocket& meeting_;
  int lifeline_;
  int signals_ = -1;
  OutputQueue out_{STDOUT_FILENO};
  OutputQueue err_{STDERR_FILENO};
  bool separate_errors_ = true;
  std::vector<Rank> ranks_;
  const Clock::time_point began_ = Clock::now();

  bool nothing_left_ = false;  // no process below this one
  bool abandoned_ = false;     // `ds launch` was killed
  int passed_on_ = 0;          // signal that the ranks got from outside
  bool ending_ = false;
  Clock::time_point ending_since_;
  std::optional<Clock::time_point> kill_at_;
  bool killed_ = false;
  const Rank* first_ = nullptr;  // to end by a failure of its own
  std::string stopped_;          // ranks that did not run when that ended
  int status_ = kDone;
};

constexpr double kGrace = 10;  // seconds, without --grace

std::chrono::milliseconds after_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Whether both are one file, so that lines of both must queue in one line.
bool same_file(int a, int b) {
  struct stat x, y;
  return ::fstat(a, &x) == 0 && ::fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

Job::Job(RankStart start, int lifeline, MeetingSocket& meeting)
    : start_(std::move(start)),
      options_(start_.options),
      meeting_(meeting),
      lifeline_(lifeline),
      separate_errors_(!same_file(STDOUT_FILENO, STDERR_FILENO)),
      ranks_(static_cast<size_t>(options_.ranks)) {
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  signals_ = ::signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) throw Failure("cannot watch signals");
  adopt_orphans();
}

// Errors are printed in order with what ranks printed.
void Job::say(const std::string& text) { errors().add("ds: " + text + "\n"); }

bool Job::ranks_left() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.process != 0; });
}

std::string Job::ranks_running() const {
  std::string out;
  for (const Rank& rank : ranks_) {
    if (rank.process != 0) out += (out.empty() ? "" : ", ") + std::to_string(rank.number);
  }
  return out;
}

void Job::start_ranks() {
  for (size_t i = 0; i < ranks_.size() && !ending_; ++i) {
    ranks_[i].number = static_cast<int>(i);
    try {
      start_rank(start_, ranks_[i], out_, errors());
    } catch (const RankError& error) {
      say("error: " + error.text);
      status_ = error.status;
      begin_ending();
    }
    meeting_.close();  // rank 0 has it, and nobody else needs it
  }
}

// From here on all that runs has to end: asked now, killed after the grace period.
void Job::begin_ending() {
  if (ending_) return;
  ending_ = true;
  ending_since_ = Clock::now();
  kill_at_ = ending_since_ + after_seconds(options_.grace.value_or(kGrace));
  for (const Rank& rank : ranks_) {
    if (rank.process == 0 || !is_stopped(rank.process)) continue;
    stopped_ += (stopped_.empty() ? "" : ", ") + std::to_string(rank.number);
  }
  const std::vector<pid_t> below = descendants();
  for (const pid_t id : below) ::kill(id, SIGTERM);
  if (!below.empty()) return;
  for (const Rank& rank : ranks_) {  // /proc is not there
    if (rank.process != 0) ::kill(-rank.process, SIGTERM);
  }
}

void Job::rank_ended(Rank& rank, int wait_status) {
  rank.process = 0;
  rank.ended = seconds();
  rank.killed = WIFSIGNALED(wait_status);
  rank.status = rank.killed ? kSignalBase + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  rank.notes.read();
  if (rank.status == 0 || ending_) return;
  // The others may still be saving: they got the signal, too.
  if (passed_on_ != 0 && rank.status == kSignalBase + passed_on_) {
    status_ = rank.status;
    return;
  }
  // Of those that are found together, who was killed is the cause and not the consequence.
  if (first_ == nullptr || (rank.killed && !first_->killed)) first_ = &rank;
}

void Job::collect() {
  int wait_status = 0;
  pid_t id = 0;
  while ((id = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    for (Rank& rank : ranks_) {
      if (rank.process == id) rank_ended(rank, wait_status);
    }
  }
  nothing_left_ = id < 0 && errno == ECHILD;
  if (first_ != nullptr && !ending_) {
    status_ = first_->status;
    begin_ending();
  }
  // What ranks left behind in the background.
  if (!ranks_left() && !nothing_left_) begin_ending();
}

void Job::take_signal() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    const bool stops =
        number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
    if (!stops && number != SIGUSR1 && number != SIGUSR2) continue;
    if (stops && passed_on_ != 0) {
      status_ = kSignalBase + number;
      begin_ending();
      kill_at_ = Clock::now();
      continue;
    }
    if (stops) {
      passed_on_ = number;
      say("passed signal " + std::to_string(number) + " on to ranks " + ranks_running() +
          "; another one kills them" +
          (options_.grace ? format(", and so do %g s (--grace)", *options_.grace) : ""));
      if (options_.grace && !ending_) kill_at_ = Clock::now() + after_seconds(*options_.grace);
    }
    for (const Rank& rank : ranks_) {
      if (rank.process != 0) ::kill(-rank.process, number);
    }
  }
}

void Job::watch_times() {
  if (options_.timeout && !ending_ && !nothing_left_ && seconds() >= *options_.timeout) {
    say(format("error: not done after %g s (--timeout); ending ranks %s", *options_.timeout,
               ranks_running().c_str()));
    status_ = kTimedOut;
    begin_ending();
  }
  for (Rank& rank : ranks_) rank.notes.read();
  if (kill_at_ && !nothing_left_ && Clock::now() >= *kill_at_) {
    if (!ending_) status_ = kSignalBase + passed_on_;  // of a signal from outside
    begin_ending();
    killed_ = true;
    for (const Rank& rank : ranks_) {
      if (rank.process != 0) ::kill(-rank.process, SIGKILL);
    }
    signal_descendants(SIGKILL);
    kill_at_ = Clock::now() + std::chrono::milliseconds(20);  // for what was forked meanwhile
  }
  if (!ending_ && (out_.broken() || err_.broken())) {
    status_ = kFailed;
    begin_ending();
  }
}

void Job::wait_for_events() {
  std::vector<pollfd> files = {{signals_, POLLIN, 0}, {lifeline_, POLLIN, 0}};
  std::vector<LineReader*> readers;
  std::vector<OutputQueue*> queues;
  for (OutputQueue* const queue : {&out_, &err_}) {
    if (queue->empty()) continue;
    files.push_back({queue->file(), POLLOUT, 0});
    queues.push_back(queue);
  }
  for (Rank& rank : ranks_) {
    for (LineReader* const reader : {rank.out.get(), rank.err.get()}) {
      if (reader == nullptr || !reader->open() || reader->to().full()) continue;
      files.push_back({reader->file(), POLLIN, 0});
      readers.push_back(reader);
    }
  }
  auto until = Clock::now() + std::chrono::seconds(1);
  if (kill_at_) until = std::min(until, *kill_at_);
  if (options_.timeout && !ending_) {
    until = std::min(until, began_ + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(*options_.timeout)));
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  if (::poll(files.data(), files.size(), static_cast<int>(std::max<int64_t>(0, wait))) <= 0) return;
  if (files[0].revents != 0) take_signal();
  if (files[1].revents != 0) abandoned_ = true;
  for (size_t i = 0; i < queues.size(); ++i) {
    if (files[2 + i].revents != 0) queues[i]->write_some();
  }
  for (size_t i = 0; i < readers.size(); ++i) {
    if (files[2 + queues.size() + i].revents != 0) readers[i]->read_some();
  }
}

std::deque<std::string> Job::last_errors(const Rank& rank) const {
  if (rank.err) return rank.err->last_lines();
  return last_lines_of(rank_log(options_, rank.number, "err"));
}

// Whose failure came before the others', by the ranks' own clocks. Who was killed told nobody, and
// a program without notes may be the cause of what others say about it. What a rank tells of
// another one is no cause where there is any else.
const Rank& Job::cause() const {
  if (first_->killed) return *first_;
  const auto key = [&](const Rank& rank) {
    return std::pair(rank.notes.any() && rank.notes.of_others(), failed_after(rank));
  };
  const Rank* best = first_;
  for (const Rank& rank : ranks_) {
    if (&rank == first_ || rank.status == 0 || !rank.notes.any()) continue;
    constexpr double kRecent = 5;  // what it got over before that has nothing to do with the end
    const double ending = std::chrono::duration<double>(ending_since_ - began_).count();
    const double last = since_start(rank.notes.last());
    if (failed_after(rank) < ending && last > ending - kRecent && key(rank) < key(*best)) {
      best = &rank;
    }
  }
  return *best;
}

double Job::failed_after(const Rank& rank) const {
  return rank.notes.any() ? since_start(rank.notes.first()) : rank.ended;
}

// Who failed first and how, and what it said last.
void Job::tell() {
  if (out_.broken() || err_.broken())
    say("error: cannot write the ranks' output: its reader has gone");
  if (first_ == nullptr) return;
  const Rank& rank = cause();
  const bool ended_here = rank.killed && &rank != first_;
  if (&rank != first_ && !rank.killed) status_ = rank.status;
  std::string text = "error: ";
  if (!stopped_.empty() && rank.notes.any() && rank.notes.of_others()) {
    text += "did not run, stopped by a signal or a debugger: rank " + stopped_ + "; ";
  }
  text +=
      format("rank %d failed first, after %.1f s: %s", rank.number, failed_after(rank),
             (ended_here    ? "its error came before that of rank " + std::to_string(first_->number)
              : rank.killed ? describe_signal(rank.status - kSignalBase)
                            : "exit code " + std::to_string(rank.status))
                 .c_str());
  if (ranks_.size() > 1)
    text += killed_ ? "; the others were ended, by force" : "; the others were ended";
  const std::deque<std::string> lines = last_errors(rank);
  if (!lines.empty()) {
    text += "\n  its standard error ended with";
    if (!rank.err) text += " (" + rank_log(options_, rank.number, "err") + ")";
    for (const std::string& line : lines) text += "\n  | " + line;
  }
  say(text);
}

int Job::run() {
  start_ranks();
  while (!nothing_left_ && !abandoned_) {
    collect();
    watch_times();
    if (!nothing_left_) wait_for_events();
  }
  if (abandoned_) {
    kill_descendants();
    return kFailed;
  }
  // Nobody writes any more: what the pipes hold is all there is.
  for (Rank& rank : ranks_) {
    for (LineReader* const reader : {rank.out.get(), rank.err.get()}) {
      if (reader == nullptr) continue;
      while (reader->open() && reader->read_some()) {
      }
      reader->finish();
    }
  }
  tell();
  while (!abandoned_ && !(out_.empty() && err_.empty())) wait_for_events();
  return status_;
}

}  // namespace

int run_job(RankStart start, int lifeline, MeetingSocket& meeting) {
  start.meeting_file = meeting.file();
  return Job(std::move(start), lifeline, meeting).run();
}

}  // namespace tool
