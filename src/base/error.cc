#include "base/error.h"

namespace ds {

void fail_with(Code code, std::initializer_list<TextPart> parts) {
  throw Error(code, join_parts(parts));
}

}  // namespace ds
