// Where the models of a group's ranks lie, and whether the group can train them there.
#pragma once

#include "comm/communicator.h"
#include "device/device.h"

namespace ds {

// `device` is that of this rank's model. Throws kUnsupported for a GPU whose memory the group does
// not move, before anything is waited for; and, which is collective over groups that do, when
// ranks have different kinds of device or two of them have the same GPU.
void check_rank_devices(const Device& device, Communicator& comm);

}  // namespace ds
