// The reference page of the configuration, rendered from the key table.
#pragma once

#include <string>

namespace ds {

// docs/configuration.md as Markdown.
std::string render_config_docs();

}  // namespace ds
