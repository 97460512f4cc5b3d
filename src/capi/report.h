// The report about build and machine: what runs here, how fast it can be, and what is not usable
// and why.
#pragma once

#include <string>

namespace ds::capi {

std::string report_json();

}  // namespace ds::capi
