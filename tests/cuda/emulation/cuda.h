// The part of the CUDA driver's types that the project uses; see cuda_runtime_api.h.
#pragma once

enum CUresult : int { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
typedef struct CUctx_st* CUcontext;
