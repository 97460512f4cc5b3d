// The processes below this one, whatever groups and sessions they moved to: who adopts orphans
// (adopt_orphans) finds all of them here until each has ended.
#pragma once

#include <sys/types.h>

#include <vector>

namespace tool {

// Orphans below this process become its children instead of init's.
void adopt_orphans();

// Children, their children and so on, from /proc, parents before their children: a program that is
// signalled in this order hears of it before the end of what it started. Those that ended but were
// not waited for are left out. Empty where /proc is not mounted.
std::vector<pid_t> descendants();

// Whether it was stopped (SIGSTOP, a debugger) and does not run.
bool is_stopped(pid_t id);

// Sends a signal to all of them.
void signal_descendants(int number);

// Kills all of them and waits until none is left, at most for ten seconds. Gives how many were
// left.
int kill_descendants();

}  // namespace tool
