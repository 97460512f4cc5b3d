// The page that `ds view` writes: one HTML document that needs nothing else, neither files nor a
// network.
#pragma once

#include <string>

#include "format.h"

namespace tool {

// `run` is what the script of the page (view_page.js) reads. Its texts may be anything: they cannot
// end the element that holds them, and the script shows them as text only.
std::string view_page(const std::string& title, const Json& run);

}  // namespace tool
