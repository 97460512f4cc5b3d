// Chats as text for a model: built-in templates by name, and which of the text is learned.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace ds {

enum class ChatTemplate {
  kPlain,   // "user: TEXT\n" per message, for any tokenizer
  kChatml,  // <|im_start|>user\nTEXT<|im_end|>\n
  kLlama3,  // <|start_header_id|>user<|end_header_id|>\n\nTEXT<|eot_id|>
};
const char* chat_template_name(ChatTemplate chat);
std::optional<ChatTemplate> chat_template(std::string_view name);

struct ChatMessage {
  std::string role;  // system, user, assistant or tool
  std::string content;
};

// Tokens of one training example: what is learned as it is, the rest as its complement (~id), so
// that one number tells both.
using MaskedTokens = std::vector<int32_t>;
inline bool is_learned(int32_t masked) { return masked >= 0; }
inline int32_t token_of(int32_t masked) { return masked >= 0 ? masked : ~masked; }

// Renders chats with one tokenizer. The replies (assistant) with their end token are learned.
// Special tokens that a message spells out are ordinary text: no message can forge a turn.
class ChatRenderer {
 public:
  // Throws Error(kInvalidArgument) when the tokenizer lacks a token of the template.
  ChatRenderer(ChatTemplate chat, TokenizerPtr tokenizer);

  void append(const std::vector<ChatMessage>& messages, MaskedTokens& out) const;
  // The template ends turns with a token of its own, so that none is needed at the end.
  bool ends_turns() const noexcept { return chat_ != ChatTemplate::kPlain; }
  // The token that begins a text, if the template wants one.
  std::optional<int32_t> begin_token() const noexcept { return begin_; }

 private:
  void put_text(std::string_view text, bool learned, MaskedTokens& out) const;

  ChatTemplate chat_;
  TokenizerPtr tokenizer_;
  int32_t open_ = -1;    // before the role
  int32_t header_ = -1;  // behind the role
  int32_t close_ = -1;   // behind the content
  std::optional<int32_t> begin_;
};

}  // namespace ds
