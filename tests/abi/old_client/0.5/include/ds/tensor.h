/**
 * @file
 * ds/tensor.h - numbers with shape and type, in the library's memory or the caller's.
 */
#ifndef DS_TENSOR_H
#define DS_TENSOR_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A ds_dtype_code. Since: 0.5. */
typedef int32_t ds_dtype;
/** Element types. */
enum ds_dtype_code {
  DS_DTYPE_UNKNOWN = -1,
  DS_FLOAT32 = 1,
  DS_FLOAT64 = 2,
  DS_FLOAT16 = 3,
  DS_BFLOAT16 = 4,
  DS_INT8 = 5,
  DS_INT16 = 6,
  DS_INT32 = 7,
  DS_INT64 = 8,
  DS_UINT8 = 9,
  DS_UINT16 = 10,
  DS_UINT32 = 11,
  DS_UINT64 = 12,
  DS_BOOL = 13
};

/** A ds_device_code. Since: 0.5. */
typedef int32_t ds_device_kind;
/** Kinds of device a tensor may lie on; DLPack's numbers. */
enum ds_device_code { DS_DEVICE_UNKNOWN = -1, DS_DEVICE_CPU = 1, DS_DEVICE_CUDA = 2 };

/** Dimensions of a tensor at most. */
#define DS_MAX_DIMS 8

struct DLManagedTensorVersioned; /* from dlpack.h, which a caller includes only if it needs it */
struct DLManagedTensor;          /* the struct of DLPack before version 1.0 */

/**
 * Makes a tensor of zeros in host memory.
 * @param dtype  a ds_dtype
 * @param shape  `ndim` sizes, each >= 0; may be NULL when ndim is 0
 * @param ndim   0 to 8
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_create(ds_dtype dtype, const int64_t* DS_NULLABLE shape, int32_t ndim,
                                  ds_tensor** out_tensor);

/**
 * Wraps host memory of the caller without copying.
 * @param data       first element; aligned to the element size
 * @param dtype      a ds_dtype
 * @param shape      `ndim` sizes
 * @param strides    `ndim` steps in elements, >= 0; NULL means packed row-major
 * @param ndim       0 to 8
 * @param release    called once when the library no longer uses `data`, on any thread; may be NULL
 * @param user_data  passed to `release`
 * Ownership: `data` stays the caller's and must live until `release` (or, without one, until the
 * tensor and everything made from it are gone). Since: 0.1.
 */
DS_API ds_status ds_tensor_from_buffer(void* DS_NULLABLE data, ds_dtype dtype,
                                       const int64_t* DS_NULLABLE shape,
                                       const int64_t* DS_NULLABLE strides, int32_t ndim,
                                       ds_release_fn DS_NULLABLE release,
                                       void* DS_NULLABLE user_data, ds_tensor** out_tensor);

/**
 * Takes a DLPack 1.x tensor without copying (dmlc/dlpack): host memory, pinned or not, or memory of
 * a GPU. The latter serves as parameters (ds_model_create_from_parameters), gradients and values;
 * other calls refuse it. A call that takes GPU memory expects it ready, and is done with it on
 * return; ds_model_set_stream orders both on the GPU instead.
 * @param managed  the tensor; another major version is refused
 * @param stream   a cudaStream_t that the host waits for first (NULL: CUDA's default); -1, cast to
 * a pointer, for none, where the stream of the model orders the work; NULL for host memory
 * Ownership: on DS_OK the library owns `managed` and calls its deleter once; on failure it remains
 * the caller's. Errors: DS_ERR_UNSUPPORTED. Since: 0.1.
 */
DS_API ds_status ds_tensor_from_dlpack(struct DLManagedTensorVersioned* managed,
                                       void* DS_NULLABLE stream, ds_tensor** out_tensor);

/**
 * The same for the struct of DLPack before 1.0.
 * Ownership and Errors: as ds_tensor_from_dlpack. Since: 0.1.
 */
DS_API ds_status ds_tensor_from_dlpack_legacy(struct DLManagedTensor* managed,
                                              void* DS_NULLABLE stream, ds_tensor** out_tensor);

/**
 * Exports a tensor as DLPack 1.x without copying; its memory stays alive until the deleter runs.
 * @param stream  of GPU memory: the cudaStream_t that is to read it and waits, on the GPU, for the
 *                library's work; NULL for any, where the host waits; -1, cast to a pointer, for
 *                nobody. NULL for host memory
 * Ownership: call `(*out_managed)->deleter(*out_managed)` once. Errors: DS_ERR_UNSUPPORTED.
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_to_dlpack(const ds_tensor* tensor, void* DS_NULLABLE stream,
                                     struct DLManagedTensorVersioned** out_managed);

/**
 * The same for the struct of DLPack before 1.0; a read-only tensor is refused, because that struct
 * cannot say so.
 * Ownership and Errors: as ds_tensor_to_dlpack. Since: 0.1.
 */
DS_API ds_status ds_tensor_to_dlpack_legacy(const ds_tensor* tensor, void* DS_NULLABLE stream,
                                            struct DLManagedTensor** out_managed);

/** What a tensor is. Set struct_size before the call. Since: 0.5. */
typedef struct ds_tensor_info {
  int64_t struct_size;        /**< sizeof(ds_tensor_info) of the caller's header */
  void* data;                 /**< first element, in the memory of the tensor's device; NULL for
                                   no elements. Borrowed while the tensor lives */
  int64_t elements;           /**< number of elements */
  int64_t bytes;              /**< of all elements, packed */
  int64_t shape[8];           /**< sizes; 0 beyond ndim */
  int64_t strides[8];         /**< steps in elements; 0 beyond ndim */
  int32_t ndim;               /**< 0 to DS_MAX_DIMS */
  ds_dtype dtype;             /**< element type */
  ds_device_kind device_kind; /**< where it lies */
  int32_t device_index;       /**< which device of that kind */
  ds_bool read_only;          /**< it must not be written through `data` */
  ds_bool contiguous;         /**< packed row-major */
} ds_tensor_info;
/** A ds_tensor_info to be filled. */
#define DS_TENSOR_INFO_INIT \
  { (int64_t)sizeof(ds_tensor_info), 0, 0, 0, {0}, {0}, 0, 0, 0, 0, 0, 0 }

/** Type, shape, place and address of a tensor. Threads: any. Since: 0.5. */
DS_API ds_status ds_tensor_describe(const ds_tensor* tensor, ds_tensor_info* out_info);

/**
 * Copies all elements, packed row-major, to host memory of the caller.
 * @param size  bytes at `buffer`; must equal elements * element size
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_read(const ds_tensor* tensor, void* buffer, int64_t size);

/**
 * Copies packed row-major elements from host memory of the caller into the tensor.
 * @param size  bytes at `buffer`; must equal elements * element size
 * Errors: DS_ERR_STATE for a read-only tensor. Since: 0.1.
 */
DS_API ds_status ds_tensor_write(ds_tensor* tensor, const void* buffer, int64_t size);

/**
 * The value of a tensor of one element, converted to double.
 * Since: 0.1.
 */
DS_API ds_status ds_tensor_item(const ds_tensor* tensor, double* out_value);

/**
 * Copies tensors one after another into a new one of one dimension.
 * @param tensors   `count` tensors of one type in host memory, with any strides
 * @param count     1 or more
 * @param out_flat  [all elements]
 * Errors: DS_ERR_UNSUPPORTED (memory of a GPU). Since: 0.5.
 */
DS_API ds_status ds_tensor_flatten(ds_tensor* const* tensors, int64_t count, ds_tensor** out_flat);
/**
 * Views of the pieces of a flat tensor, without a copy: the inverse of ds_tensor_flatten.
 * @param flat         packed, of one dimension
 * @param shapes_like  `count` tensors that give the shapes, in order; their elements in all are
 *                     those of `flat`
 * @param out_tensors  room for `count` tensors, each ended with ds_tensor_destroy; they share and
 *                     keep the memory of `flat`
 * Since: 0.5.
 */
DS_API ds_status ds_tensor_unflatten(const ds_tensor* flat, ds_tensor* const* shapes_like,
                                     int64_t count, ds_tensor** out_tensors);

/**
 * Quantises numbers to 8 or 4 bits with a float32 scale per block, the format in which ZeRO++ sends
 * weights and gradients (Wang et al., arXiv:2306.10209): scale = the block's element of largest
 * magnitude / -2^(bits-1), code = element / scale, rounded to the nearest, ties to even. A block
 * with an element that is not finite comes back as NaN.
 * @param tensor      float32, bfloat16 or float16, packed, in host memory
 * @param bits        8 or 4
 * @param block_size  elements that share a scale: even, 2 to 512; the last block may be shorter
 * @param out_codes   uint8 [elements], or [(elements + 1) / 2] with 4 bits: the earlier of two
 *                    codes in the upper half of a byte
 * @param out_scales  float32 [blocks]
 * Errors: DS_ERR_UNSUPPORTED (memory of a GPU, another type). Since: 0.5.
 */
DS_API ds_status ds_tensor_quantize(const ds_tensor* tensor, int32_t bits, int64_t block_size,
                                    ds_tensor** out_codes, ds_tensor** out_scales);
/**
 * Writes code * scale to every element of a tensor.
 * @param codes, scales, bits, block_size  as ds_tensor_quantize gave and was given them
 * @param output  float32, bfloat16 or float16, packed, in host memory; its number of elements says
 *                how many codes there are
 * Errors: DS_ERR_STATE for a read-only tensor, DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_tensor_dequantize(const ds_tensor* codes, const ds_tensor* scales, int32_t bits,
                                      int64_t block_size, ds_tensor* output);

/**
 * Quantises numbers to 8 or 4 bits by groups, an even number of elements each, with a float32 scale
 * per group: symmetric (element = code * scale, scale = largest magnitude / (2^(bits-1) - 1)) or
 * asymmetric (element = minimum + code * scale, scale = (maximum - minimum) / (2^bits - 1)).
 * Rounded to the nearest an element comes back within half a step; rounded stochastically within a
 * step, and the mean over many seeds is the element. A group with an element that is not finite
 * comes back as NaN.
 * @param tensor      float32, bfloat16 or float16, packed, in host memory
 * @param bits        8 or 4
 * @param group_size  elements that share a scale: even, 2 or more; the last group may be shorter
 * @param asymmetric  whether groups have minima
 * @param seed        0 or more: stochastic rounding, drawn from this seed; -1: to the nearest
 * @param out_codes   uint8 [elements], or [(elements + 1) / 2] with 4 bits: the earlier of two
 *                    codes in the upper half of a byte; symmetric codes are in two's complement
 * @param out_scales  float32 [groups]; asymmetric [2, groups], the second row holding the minima
 * Errors: DS_ERR_UNSUPPORTED (memory of a GPU, another type). Since: 0.5.
 */
DS_API ds_status ds_tensor_quantize_groups(const ds_tensor* tensor, int32_t bits,
                                           int64_t group_size, ds_bool asymmetric, int64_t seed,
                                           ds_tensor** out_codes, ds_tensor** out_scales);
/**
 * Writes what the codes stand for to every element of a tensor.
 * @param codes, scales     as ds_tensor_quantize_groups gave them
 * @param bits, group_size  as that was given them
 * @param output  float32, bfloat16 or float16, packed, in host memory; its number of elements says
 *                how many codes there are
 * Errors: DS_ERR_STATE for a read-only tensor, DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_tensor_dequantize_groups(const ds_tensor* codes, const ds_tensor* scales,
                                             int32_t bits, int64_t group_size, ds_tensor* output);
/**
 * Quantises and dequantises in one call: the numbers that training for quantised inference sees.
 * @param bits, group_size, asymmetric, seed  as for ds_tensor_quantize_groups
 * @param out_tensor  of the type and shape of `tensor`
 * Errors: DS_ERR_UNSUPPORTED (memory of a GPU, another type). Since: 0.5.
 */
DS_API ds_status ds_tensor_fake_quantize(const ds_tensor* tensor, int32_t bits, int64_t group_size,
                                         ds_bool asymmetric, int64_t seed, ds_tensor** out_tensor);

/**
 * Softmax of attention scores along the last dimension: softmax(scale * scores), of any size.
 * @param scores  [keys] to [batch, heads, queries, keys]: 1 to 4 dimensions; float32, bfloat16 or
 *                float16, packed, in host memory
 * @param mask    uint8 with as many dimensions, each as long as that of `scores` or 1, the last as
 *                long; 0 where a key is hidden. NULL: none is
 * @param scale   what scores are multiplied by
 * @param causal  whether query i sees no keys beyond i + keys - queries
 * @param out_tensor  of the type and shape of `scores`; a hidden key is exactly 0, and so is a row
 *                    that sees nothing
 * Errors: DS_ERR_UNSUPPORTED (memory of a GPU, another type). Since: 0.5.
 */
DS_API ds_status ds_tensor_softmax(const ds_tensor* scores, const ds_tensor* DS_NULLABLE mask,
                                   double scale, ds_bool causal, ds_tensor** out_tensor);
/**
 * The gradient of ds_tensor_softmax with respect to its scores, with any mask.
 * @param softmax   what ds_tensor_softmax gave
 * @param gradient  with respect to that: the same type and shape
 * @param scale     as ds_tensor_softmax was given it
 * Errors: DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_tensor_softmax_backward(const ds_tensor* softmax, const ds_tensor* gradient,
                                            double scale, ds_tensor** out_tensor);

/**
 * Splits packed projections into heads, heads before tokens, and adds a bias: the permutation 0213.
 * @param packed  [batch, tokens, parts * heads * size]: 1 part, or 3 for queries, keys and values
 *                side by side; float32, bfloat16 or float16, packed, in host memory
 * @param bias    [parts * heads * size] of the same type, or NULL
 * @param parts, heads  1 or more; their product divides the last dimension of `packed`
 * @param out_tensor    [parts, batch, heads, tokens, size]
 * The gradient of `packed` is ds_tensor_merge_heads of that of the result; that of `bias` is the
 * sum of the former over batch and tokens. Errors: DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_tensor_split_heads(const ds_tensor* packed, const ds_tensor* DS_NULLABLE bias,
                                       int32_t parts, int32_t heads, ds_tensor** out_tensor);
/**
 * The inverse of ds_tensor_split_heads without a bias.
 * @param split       [parts, batch, heads, tokens, size]
 * @param out_tensor  [batch, tokens, parts * heads * size]
 * Errors: DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_tensor_merge_heads(const ds_tensor* split, ds_tensor** out_tensor);

/** Ends a tensor; NULL is fine. Threads: any. Since: 0.1. */
DS_API void ds_tensor_destroy(ds_tensor* DS_NULLABLE tensor);

#ifdef __cplusplus
}
#endif
#endif /* DS_TENSOR_H */
