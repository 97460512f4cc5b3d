#include "cuda/emulation/nccl_on.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include "base/error.h"

namespace ds::testing {

const NcclControl& nccl_control() {
  static const NcclControl& it = []() -> const NcclControl& {
    void* const library = ::dlopen(DS_STAND_IN_NCCL, RTLD_NOW);
    if (library == nullptr) fail(Code::kInternal, ::dlerror());
    void* const entry = ::dlsym(library, kNcclControl);
    return *reinterpret_cast<const NcclControl* (*)()>(entry)();
  }();
  return it;
}

const StandIns& stand_ins() {
  static const StandIns it = {
      .nccl_library = DS_STAND_IN_NCCL,
      .begin =
          [](int gpus, int64_t bytes_each) {
            stand_in::reset(gpus, bytes_each);
            stand_in::go_on_when_asked();
            nccl_control().reset();
          },
      .expect_nothing_left =
          [] {
            EXPECT_EQ(stand_in::live(), stand_in::Live{}) << "something is left";
            EXPECT_THAT(stand_in::violations(), ::testing::IsEmpty());
            EXPECT_STREQ(nccl_control().violation(), "");
            EXPECT_EQ(nccl_control().live(), 0) << "communicators of NCCL are left";
          },
      .graph_launches = stand_in::graph_launches,
  };
  return it;
}

}  // namespace ds::testing
