#include "engine/micro_batch.h"

#include "engine/run_context.h"
#include "models/inputs.h"

namespace ds {

models::Batch make_batch(RunContext& run, const MicroBatch& inputs) {
  const models::ArchitectureInfo& info = run.model->architecture().info();
  const OpContext ctx = run.host_context();
  models::Batch batch;
  batch.ids = models::token_ids(ctx, inputs.ids, "token ids", info.vocab_size);
  DS_CHECK(inputs.ids.size(1) <= info.max_positions, Code::kInvalidArgument, "sequences of ",
           inputs.ids.size(1), " tokens are longer than the model's ", info.max_positions,
           " positions");
  batch.key_mask = models::key_mask(ctx, inputs.mask, inputs.ids);
  if (inputs.segments) {
    batch.segments = models::segment_ids(ctx, inputs.segments, inputs.ids);
    batch.position_ids = models::segment_positions(ctx, batch.segments);
  } else {
    batch.position_ids = models::position_ids(ctx, inputs.ids.size(0), inputs.ids.size(1), 0);
  }
  if (inputs.token_types) {
    DS_CHECK(info.token_types > 0, Code::kInvalidArgument,
             "this model family has no token types; leave them out");
    batch.token_types =
        models::matching_ids(ctx, inputs.token_types, inputs.ids, "token types", info.token_types);
  }
  return batch;
}

Tensor make_labels(RunContext& run, const MicroBatch& inputs) {
  return models::loss_labels(run.host_context(), inputs.labels, inputs.ids,
                             run.model->architecture().info());
}

}  // namespace ds
