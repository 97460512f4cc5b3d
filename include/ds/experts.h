/**
 * @file
 * ds/experts.h - the parts of a mixture of experts around the experts themselves, for programs that
 * compute their own forward and backward pass: which experts a token chooses, its way to them, and
 * the sum of what they give.
 *
 * Tensors are packed, in host memory, and never changed; results are new tensors, each ended with
 * ds_tensor_destroy. Results are the same bits for any number of threads. A model of the library
 * has all of this inside (docs/experts.md).
 *
 * The gradients: of ds_experts_gate by ds_experts_gate_backward; of ds_experts_dispatch without
 * weights by ds_experts_combine without weights, of the rows' gradient; of ds_experts_combine by
 * ds_experts_dispatch with its weights, of the output's gradient, for the rows, and
 * ds_experts_weights_backward for the weights.
 */
#ifndef DS_EXPERTS_H
#define DS_EXPERTS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The gate: chooses the experts of each token and what their outputs weigh.
 * @param logits  float32 [tokens, experts]: the router's product with each token
 * @param bias    float32 [experts], added to the scores for choosing, not for weighing (balancing
 *                without a loss, Wang et al., arXiv:2408.15664); NULL: none
 * @param options_json  NULL, or an object of
 *                "top_k" (1): experts per token, best first;
 *                "score_function" ("softmax"): or "sigmoid", of each logit by itself;
 *                "route_norm" (false): weights are shares of what the token's routes have together,
 *                "route_scale" (1): and are multiplied by this;
 *                "num_expert_groups" (1), "num_limited_groups" (all): experts are in groups of
 * equal size, and a token chooses from so many of them (DeepSeek-V2, arXiv:2405.04434),
 *                "group_score" ("max"): those with the best expert, or with "top2" those with the
 *                best two;
 *                "capacity_factor" (none): an expert takes factor * top_k * tokens / experts
 * tokens, rounded up, at least "min_capacity" (4); without it all that come; "drop_policy"
 * ("probs"): of more, those with the highest scores; "position" the first; "first_choices" the
 * same, first choices before second ones (as DeepSpeed's gate for two experts); "random" any;
 *                "sample" ("none"): with "first" the best expert is drawn from the softmax of the
 *                logits, with "others" those after it, with "all" both;
 *                "seed" (0) and "first_token" (0): of what is random. Token i draws the numbers of
 *                token first_token + i, however ranks share a batch;
 *                "balance_choices" (top_k): so many first choices of a token count in the balancing
 *                loss (DeepSpeed for two experts: 1)
 * @param out_chosen   int32 [tokens, top_k]: the expert, -1 where it had no room
 * @param out_weights  float32 [tokens, top_k]: 0 where there is no expert
 * @param out_counts   int64 [3, experts]: tokens that chose each expert; that it took; that the
 *                     balancing loss counts
 * @param out_losses   float32 [2]: the balancing loss, experts * the sum over experts of the mean
 *                     score (of sigmoids the share of the token's scores) and the share of counted
 *                     choices, 1 where loads are equal (Switch Transformer, arXiv:2101.03961); and
 *                     the z-loss, the mean squared logarithm of the sum of e^logit (ST-MoE,
 *                     arXiv:2202.08906)
 * Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_CONFIG (an option), DS_ERR_UNSUPPORTED (memory of a GPU,
 * another type). Since: 0.5.
 */
DS_API ds_status ds_experts_gate(const ds_tensor* logits, const ds_tensor* DS_NULLABLE bias,
                                 const char* DS_NULLABLE options_json, ds_tensor** out_chosen,
                                 ds_tensor** out_weights, ds_tensor** out_counts,
                                 ds_tensor** out_losses);
/**
 * The gradient of ds_experts_gate with respect to its logits.
 * @param logits, options_json  as ds_experts_gate was given them
 * @param chosen, counts        as it gave them
 * @param weights_gradient      float32 [tokens, top_k]; NULL: 0
 * @param losses_gradient       float32 [2]; NULL: 0
 * @param out_logits_gradient   float32 [tokens, experts]
 * Errors: as ds_experts_gate. Since: 0.5.
 */
DS_API ds_status ds_experts_gate_backward(const ds_tensor* logits, const ds_tensor* chosen,
                                          const ds_tensor* counts,
                                          const char* DS_NULLABLE options_json,
                                          const ds_tensor* DS_NULLABLE weights_gradient,
                                          const ds_tensor* DS_NULLABLE losses_gradient,
                                          ds_tensor** out_logits_gradient);
/**
 * Sorts routes by expert, with the order of tokens kept: a counting sort, without padding. A route
 * is number token * choices + choice; a row is a route that an expert takes.
 * @param chosen       int32 [tokens, choices]: an expert, or -1
 * @param experts      1 or more; `chosen` holds numbers below it
 * @param out_offsets  int32 [experts + 1]: where each expert's rows begin; the last is their number
 * @param out_order    int32 [rows]: the route of each row
 * @param out_places   int32 [tokens, choices]: the row of each route, or -1
 * Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_experts_sort(const ds_tensor* chosen, int64_t experts, ds_tensor** out_offsets,
                                 ds_tensor** out_order, ds_tensor** out_places);
/**
 * Copies each token's row to the rows of its routes: row r is token order[r] / choices.
 * @param tokens   [tokens, width]: float32, bfloat16 or float16
 * @param order    int32 [rows], as ds_experts_sort gave it, or numbers of routes in any order
 * @param choices  of a token, 1 or more
 * @param weights  float32 [tokens, choices], by which rows are multiplied, route by route, each
 *                 product rounded once; NULL: 1
 * @param out_rows  [rows, width] of the type of `tokens`
 * Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_experts_dispatch(const ds_tensor* tokens, const ds_tensor* order,
                                     int64_t choices, const ds_tensor* DS_NULLABLE weights,
                                     ds_tensor** out_rows);
/**
 * Adds up the rows of each token's routes, in float32, in the order of its choices, and rounds
 * once.
 * @param rows     [rows, width]: float32, bfloat16 or float16
 * @param places   int32 [tokens, choices]: the row of each route, or -1, as ds_experts_sort gave it
 * @param weights  float32 [tokens, choices], by which rows are multiplied; NULL: 1
 * @param out_tokens  [tokens, width] of the type of `rows`; 0 where a token has no route
 * Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_experts_combine(const ds_tensor* rows, const ds_tensor* places,
                                    const ds_tensor* DS_NULLABLE weights, ds_tensor** out_tokens);
/**
 * The gradient of ds_experts_combine with respect to its weights.
 * @param rows, places   as ds_experts_combine was given them
 * @param gradient       [tokens, width] of the type of `rows`, with respect to its result
 * @param out_weights_gradient  float32 [tokens, choices]; 0 where there is no route
 * Errors: DS_ERR_INVALID_ARGUMENT, DS_ERR_UNSUPPORTED. Since: 0.5.
 */
DS_API ds_status ds_experts_weights_backward(const ds_tensor* rows, const ds_tensor* places,
                                             const ds_tensor* gradient,
                                             ds_tensor** out_weights_gradient);

#ifdef __cplusplus
}
#endif
#endif /* DS_EXPERTS_H */
