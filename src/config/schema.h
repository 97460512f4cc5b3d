// The key table as a JSON Schema, for editors and checks outside the library.
#pragma once

#include "base/json.h"

namespace ds {

// Draft 2020-12. It accepts what strict reading accepts of each key by itself; which keys go
// together it does not say.
Json config_schema();

}  // namespace ds
