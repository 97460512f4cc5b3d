#include "capi/call_rows.h"

namespace capi_test {

std::vector<Call> tokenizer_calls() {
  return {
      {"ds_tokenizer_create_bytes",
       {out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) { return ds_tokenizer_create_bytes(p<ds_tokenizer*>(a, 0)); }},
      {"ds_tokenizer_open",
       {text("path", "{dir}/saved"), out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) { return ds_tokenizer_open(s(a, 0), p<ds_tokenizer*>(a, 1)); },
       [](World& world, Arguments&) { save_checkpoint(world); }},
      {"ds_tokenizer_from_json",
       {text("json", ""), out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) {
         return ds_tokenizer_from_json(s(a, 0), -1, p<ds_tokenizer*>(a, 1));
       },
       [](World& world, Arguments& a) {
         static std::string json;
         char* given = nullptr;
         EXPECT_DS_OK(ds_tokenizer_to_json(world.tokenizer, &given));
         json = given;
         ds_string_free(given);
         a[0] = json.data();
       }},
      {"ds_tokenizer_train",
       {text("text", "the cat and the hat and the bat"), out(kTokenizer, "out_tokenizer")},
       [](const Arguments& a) {
         return ds_tokenizer_train(s(a, 0), -1, R"({"vocab_size": 262})", p<ds_tokenizer*>(a, 1));
       }},
      {"ds_tokenizer_encode",
       {in(kTokenizer, "tokenizer"), text("text", "hello"), out(kTensor, "out_ids")},
       [](const Arguments& a) {
         return ds_tokenizer_encode(p<ds_tokenizer>(a, 0), s(a, 1), -1, 0, p<ds_tensor*>(a, 2));
       }},
      {"ds_tokenizer_decode",
       {in(kTokenizer, "tokenizer"), in(kTensor, "ids"), out_text("out_text")},
       [](const Arguments& a) {
         return ds_tokenizer_decode(p<ds_tokenizer>(a, 0), p<ds_tensor>(a, 1), 0, p<char*>(a, 2));
       },
       [](World& world, Arguments& a) { a[1] = world.list; }},
      {"ds_tokenizer_describe",
       {in(kTokenizer, "tokenizer")},
       [](const Arguments& a) {
         ds_tokenizer_info info{};
         info.struct_size = sizeof info;
         return ds_tokenizer_describe(p<ds_tokenizer>(a, 0), &info);
       }},
      {"ds_tokenizer_token_to_id",
       {in(kTokenizer, "tokenizer"), text("token", "A"), out("out_id")},
       [](const Arguments& a) {
         return ds_tokenizer_token_to_id(p<ds_tokenizer>(a, 0), s(a, 1), p<int32_t>(a, 2));
       }},
      {"ds_tokenizer_id_to_token",
       {in(kTokenizer, "tokenizer"), out_text("out_token")},
       [](const Arguments& a) {
         return ds_tokenizer_id_to_token(p<ds_tokenizer>(a, 0), 65, p<char*>(a, 1));
       }},
      {"ds_tokenizer_to_json",
       {in(kTokenizer, "tokenizer"), out_text("out_json")},
       [](const Arguments& a) {
         return ds_tokenizer_to_json(p<ds_tokenizer>(a, 0), p<char*>(a, 1));
       }},
  };
}

std::vector<Call> dataset_calls() {
  return {
      {"ds_dataset_open",
       {text("spec_json", R"({"path": "{dir}/text.txt", "sequence_length": 8})"),
        maybe(kTokenizer, "tokenizer"), out(kDataset, "out_dataset")},
       [](const Arguments& a) {
         return ds_dataset_open(s(a, 0), p<ds_tokenizer>(a, 1), p<ds_dataset*>(a, 2));
       }},
      {"ds_dataset_build",
       {text("input", "{dir}/text.txt"), in(kTokenizer, "tokenizer"),
        text("output_prefix", "{dir}/built")},
       [](const Arguments& a) {
         return ds_dataset_build(s(a, 0), p<ds_tokenizer>(a, 1), 0, s(a, 2));
       }},
      {"ds_dataset_merge",
       {text("inputs_json", R"(["{dir}/tokens"])"), text("output_prefix", "{dir}/merged")},
       [](const Arguments& a) { return ds_dataset_merge(s(a, 0), s(a, 1)); }},
      {"ds_dataset_describe",
       {in(kDataset, "dataset")},
       [](const Arguments& a) {
         ds_dataset_info info{};
         info.struct_size = sizeof info;
         return ds_dataset_describe(p<ds_dataset>(a, 0), &info);
       }},
      {"ds_dataset_sample",
       {in(kDataset, "dataset"), out(kTensor, "out_tokens")},
       [](const Arguments& a) {
         return ds_dataset_sample(p<ds_dataset>(a, 0), 3, p<ds_tensor*>(a, 1));
       }},
      {"ds_dataset_field",
       {in(kDataset, "dataset"), text("field", "labels"), out(kTensor, "out_values")},
       [](const Arguments& a) {
         return ds_dataset_field(p<ds_dataset>(a, 0), 3, s(a, 1), p<ds_tensor*>(a, 2));
       }},
  };
}

}  // namespace capi_test
