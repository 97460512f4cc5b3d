// What is used of the C interface of cuDNN's graphs, so that no header of it is needed to build.
// The numbers are those of cuDNN 9; tests compare them with cudnn_graph.h where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds::kernels::cudnn {

using Handle = void*;
using Descriptor = void*;
using Status = int;

inline constexpr Status kSuccess = 0;
// Statuses of one kind share their thousands.
inline constexpr int kNotSupported = 3;
constexpr int kind_of(Status status) { return status / 1000; }

// cudnnBackendDescriptorType_t
enum class Kind : int {
  kPointwise = 0,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kPointwiseOperation = 13,
  kGraph = 15,
  kArguments = 16,
  kTensor = 17,
  kProduct = 18,
  kProductOperation = 19,
  kReduction = 21,
  kReductionOperation = 22,
  kReshapeOperation = 31,
  kDeviceProperties = 38,
};

// cudnnBackendAttributeName_t
enum class Attribute : int {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kPointwiseAxis = 9,
  kHeuristicMode = 200,
  kHeuristicGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDevice = 204,
  kEngineConfigEngine = 300,
  kEngineConfigWorkspace = 303,
  kPlanHandle = 400,
  kPlanEngineConfig = 401,
  kPlanWorkspace = 402,
  kPointwiseDescription = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseSelector = 758,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kArgumentIds = 1000,
  kArgumentPointers = 1001,
  kArgumentWorkspace = 1003,
  kEngineNotes = 1303,
  kProductPrecision = 1500,
  kProductA = 1520,
  kProductB = 1521,
  kProductC = 1522,
  kProductDescription = 1523,
  kReductionOperator = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDescription = 1612,
  kReshapeX = 2200,
  kReshapeY = 2201,
  kDeviceJson = 2702,
};

// cudnnBackendAttributeType_t
enum class Type : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kPointer = 6,
  kHeuristicMode = 8,
  kNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
  kChar = 24,
};

// cudnnDataType_t
enum class DataType : int { kFloat = 0, kHalf = 2, kInt32 = 4, kBFloat16 = 9, kBoolean = 11 };

// cudnnPointwiseMode_t
enum class Pointwise : int {
  kAdd = 0,
  kMultiply = 1,
  kDivide = 6,
  kSubtract = 9,
  kExp = 13,
  kLog = 15,
  kIdentity = 21,
  kGreaterOrEqual = 303,
  kIndex = 501,
  kSelect = 601,
};

// cudnnReduceTensorOp_t
enum class Reduce : int { kAdd = 0, kMax = 3 };

// cudnnBackendHeurMode_t. Mode B gave the same answers as mode A for every form that was asked.
inline constexpr int kHeuristicModeA = 3, kHeuristicModeFallback = 2;
inline constexpr int kNoteNondeterministic = 4;  // cudnnBackendNumericalNote_t

struct Functions {
  size_t (*version)() = nullptr;
  const char* (*error_string)(Status) = nullptr;
  void (*last_error)(char*, size_t) = nullptr;
  Status (*create)(Handle*) = nullptr;
  Status (*set_stream)(Handle, void*) = nullptr;
  Status (*describe)(Kind, Descriptor*) = nullptr;
  Status (*destroy)(Descriptor) = nullptr;
  Status (*set)(Descriptor, Attribute, Type, int64_t, const void*) = nullptr;
  Status (*get)(Descriptor, Attribute, Type, int64_t, int64_t*, void*) = nullptr;
  Status (*finalize)(Descriptor) = nullptr;
  Status (*execute)(Handle, Descriptor, Descriptor) = nullptr;
};

}  // namespace ds::kernels::cudnn
