// Writes the configuration reference: config_docs FILE, or to standard output without FILE.
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "config/docs.h"

int main(int argc, char** argv) {
  try {
    const std::string page = ds::render_config_docs();
    if (argc > 1) {
      ds::write_file_durably(argv[1], page);
    } else {
      std::fwrite(page.data(), 1, page.size(), stdout);
    }
    return 0;
  } catch (const ds::Error& error) {
    std::fprintf(stderr, "config_docs: %s\n", error.what());
    return 1;
  }
}
