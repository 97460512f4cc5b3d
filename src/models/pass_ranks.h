// Ranks that a pass outside an engine involves, where the engine's weights are shared so that it
// does.
#pragma once

#include "mesh/row_exchange.h"

namespace ds::models {

struct PassRanks {
  ExchangeRanks experts;  // among whom the experts of each layer are shared; or none
  RankGroup together;     // those that make every pass together; none where each runs alone
};

}  // namespace ds::models
