// The version of the library, from the build.
#pragma once

namespace ds {
inline constexpr const char* kLibraryVersion = DS_BUILD_VERSION;
}
