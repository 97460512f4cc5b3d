// The numbers of kernels/cudnn/api.h beside those of cuDNN's own header, where that is installed.
#include <gtest/gtest.h>

#include "kernels/cudnn/api.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>

namespace ds::kernels::cudnn {
namespace {

template <class Ours, class Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(CUDNN_MAJOR == 9);
static_assert(kSuccess == CUDNN_STATUS_SUCCESS);
static_assert(kind_of(CUDNN_STATUS_NOT_SUPPORTED_SHAPE) == kNotSupported);
static_assert(same(Kind::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
static_assert(same(Kind::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR));
static_assert(same(Kind::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
static_assert(same(Kind::kHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
static_assert(same(Kind::kPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
static_assert(same(Kind::kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
static_assert(same(Kind::kGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
static_assert(same(Kind::kArguments, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
static_assert(same(Kind::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
static_assert(same(Kind::kProduct, CUDNN_BACKEND_MATMUL_DESCRIPTOR));
static_assert(same(Kind::kProductOperation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
static_assert(same(Kind::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
static_assert(same(Kind::kReductionOperation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
static_assert(same(Kind::kReshapeOperation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));
static_assert(same(Attribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE));
static_assert(same(Attribute::kPointwisePrecision, CUDNN_ATTR_POINTWISE_MATH_PREC));
static_assert(same(Attribute::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS));
static_assert(same(Attribute::kHeuristicMode, CUDNN_ATTR_ENGINEHEUR_MODE));
static_assert(same(Attribute::kHeuristicGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
static_assert(same(Attribute::kHeuristicResults, CUDNN_ATTR_ENGINEHEUR_RESULTS));
static_assert(same(Attribute::kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE));
static_assert(same(Attribute::kEngineConfigWorkspace, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE));
static_assert(same(Attribute::kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
static_assert(same(Attribute::kPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
static_assert(same(Attribute::kPlanWorkspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
static_assert(same(Attribute::kPointwiseDescription, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
static_assert(same(Attribute::kPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
static_assert(same(Attribute::kPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
static_assert(same(Attribute::kPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
static_assert(same(Attribute::kPointwiseSelector, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
static_assert(same(Attribute::kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
static_assert(same(Attribute::kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS));
static_assert(same(Attribute::kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
static_assert(same(Attribute::kTensorType, CUDNN_ATTR_TENSOR_DATA_TYPE));
static_assert(same(Attribute::kTensorSizes, CUDNN_ATTR_TENSOR_DIMENSIONS));
static_assert(same(Attribute::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES));
static_assert(same(Attribute::kTensorId, CUDNN_ATTR_TENSOR_UNIQUE_ID));
static_assert(same(Attribute::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL));
static_assert(same(Attribute::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE));
static_assert(same(Attribute::kArgumentIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
static_assert(same(Attribute::kArgumentPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
static_assert(same(Attribute::kArgumentWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
static_assert(same(Attribute::kEngineNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE));
static_assert(same(Attribute::kProductPrecision, CUDNN_ATTR_MATMUL_COMP_TYPE));
static_assert(same(Attribute::kProductA, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
static_assert(same(Attribute::kProductB, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
static_assert(same(Attribute::kProductC, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
static_assert(same(Attribute::kProductDescription, CUDNN_ATTR_OPERATION_MATMUL_DESC));
static_assert(same(Attribute::kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR));
static_assert(same(Attribute::kReductionPrecision, CUDNN_ATTR_REDUCTION_COMP_TYPE));
static_assert(same(Attribute::kReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
static_assert(same(Attribute::kReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
static_assert(same(Attribute::kReductionDescription, CUDNN_ATTR_OPERATION_REDUCTION_DESC));
static_assert(same(Attribute::kReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
static_assert(same(Attribute::kReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
#if CUDNN_VERSION >= 90800
static_assert(same(Kind::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
static_assert(same(Attribute::kHeuristicDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP));
static_assert(same(Attribute::kDeviceJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION));
#endif
static_assert(same(Type::kHandle, CUDNN_TYPE_HANDLE));
static_assert(same(Type::kDataType, CUDNN_TYPE_DATA_TYPE));
static_assert(same(Type::kBoolean, CUDNN_TYPE_BOOLEAN));
static_assert(same(Type::kInt64, CUDNN_TYPE_INT64));
static_assert(same(Type::kPointer, CUDNN_TYPE_VOID_PTR));
static_assert(same(Type::kHeuristicMode, CUDNN_TYPE_HEUR_MODE));
static_assert(same(Type::kNote, CUDNN_TYPE_NUMERICAL_NOTE));
static_assert(same(Type::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE));
static_assert(same(Type::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR));
static_assert(same(Type::kReductionOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE));
static_assert(same(Type::kChar, CUDNN_TYPE_CHAR));
static_assert(same(DataType::kFloat, CUDNN_DATA_FLOAT));
static_assert(same(DataType::kHalf, CUDNN_DATA_HALF));
static_assert(same(DataType::kInt32, CUDNN_DATA_INT32));
static_assert(same(DataType::kBFloat16, CUDNN_DATA_BFLOAT16));
static_assert(same(DataType::kBoolean, CUDNN_DATA_BOOLEAN));
static_assert(same(Pointwise::kAdd, CUDNN_POINTWISE_ADD));
static_assert(same(Pointwise::kMultiply, CUDNN_POINTWISE_MUL));
static_assert(same(Pointwise::kDivide, CUDNN_POINTWISE_DIV));
static_assert(same(Pointwise::kSubtract, CUDNN_POINTWISE_SUB));
static_assert(same(Pointwise::kExp, CUDNN_POINTWISE_EXP));
static_assert(same(Pointwise::kLog, CUDNN_POINTWISE_LOG));
static_assert(same(Pointwise::kIdentity, CUDNN_POINTWISE_IDENTITY));
static_assert(same(Pointwise::kGreaterOrEqual, CUDNN_POINTWISE_CMP_GE));
static_assert(same(Pointwise::kIndex, CUDNN_POINTWISE_GEN_INDEX));
static_assert(same(Pointwise::kSelect, CUDNN_POINTWISE_BINARY_SELECT));
static_assert(same(Reduce::kAdd, CUDNN_REDUCE_TENSOR_ADD));
static_assert(same(Reduce::kMax, CUDNN_REDUCE_TENSOR_MAX));
static_assert(kHeuristicModeA == CUDNN_HEUR_MODE_A);
static_assert(kHeuristicModeFallback == CUDNN_HEUR_MODE_FALLBACK);
static_assert(kNoteNondeterministic == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);

TEST(CudnnNumbers, AreThoseOfTheHeader) { SUCCEED() << "compared when this was compiled"; }

}  // namespace
}  // namespace ds::kernels::cudnn
#else
TEST(CudnnNumbers, AreThoseOfTheHeader) { GTEST_SKIP() << "cudnn_graph.h is not installed"; }
#endif
