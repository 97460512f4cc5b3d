// Checkpoints that are not needed any more: one that somebody names, or those that a run has
// outlived.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace ds {

// Deletes one checkpoint, valid or not. When `latest` names it, `latest` first moves to the valid
// one with the most steps of those that stay, or goes when there is none. kNotFound when there is
// no such checkpoint; kIo when files that are not a checkpoint's keep its folder.
void delete_checkpoint(const std::filesystem::path& save_dir, std::string_view tag);

// Deletes the checkpoints of `run` that come before its newest `keep` valid ones, by their steps.
// `newest`, which was saved just now, always stays and counts as one of them. What belongs to
// another run, or does not say to which, is left alone. A checkpoint that cannot be deleted is a
// warning.
void keep_newest(const std::filesystem::path& save_dir, const std::string& run,
                 const std::string& newest, int64_t keep) noexcept;

}  // namespace ds
