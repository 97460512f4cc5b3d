// Attention by cuDNN wherever it can, in the programs that this is linked into.
#include <cstdlib>

[[maybe_unused]] static const int kSet = ::setenv("DS_CUDNN_ATTENTION", "always", 1);
