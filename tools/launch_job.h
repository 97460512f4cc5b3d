// The job of `ds launch`: starts the ranks, passes on their output and the signals that come, and
// ends all of them when one fails.
#pragma once

#include "launch_rank.h"
#include "launch_socket.h"

namespace tool {

// Runs in a process of its own below `ds launch` and gives the exit status. Everything below it has
// ended when it returns. `lifeline` is the reading end of a pipe whose other end only `ds launch`
// holds: at its end of file that was killed, and the ranks are killed at once.
// `meeting` is rank 0's: it is closed here when that has started.
int run_job(RankStart start, int lifeline, MeetingSocket& meeting);

}  // namespace tool
