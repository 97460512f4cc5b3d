#include "tokenizer/chat_template.h"

#include <array>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace ds {
namespace {

constexpr std::array kTemplates = {ChatTemplate::kPlain, ChatTemplate::kChatml,
                                   ChatTemplate::kLlama3};

// Llama 3's own template trims every message.
std::string_view trim(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_at(text, pos);
    if (!c.valid || !is_unicode_space(c.code)) {
      begin = std::min(begin, pos);
      end = pos + c.length;
    }
    pos += c.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace

const char* chat_template_name(ChatTemplate chat) {
  switch (chat) {
    case ChatTemplate::kPlain:
      return "plain";
    case ChatTemplate::kChatml:
      return "chatml";
    case ChatTemplate::kLlama3:
      return "llama3";
  }
  return "unknown";
}

std::optional<ChatTemplate> chat_template(std::string_view name) {
  for (const ChatTemplate chat : kTemplates) {
    if (name == chat_template_name(chat)) return chat;
  }
  return std::nullopt;
}

ChatRenderer::ChatRenderer(ChatTemplate chat, TokenizerPtr tokenizer)
    : chat_(chat), tokenizer_(std::move(tokenizer)) {
  DS_CHECK(tokenizer_ != nullptr, Code::kInvalidArgument, "a chat template needs a tokenizer");
  const auto need = [&](const char* token) {
    const auto found = tokenizer_->id(token);
    DS_CHECK(found, Code::kInvalidArgument, "the chat template \"", chat_template_name(chat),
             "\" needs the token \"", token,
             "\", which the tokenizer does not have; choose another template, or \"plain\"");
    return *found;
  };
  if (chat == ChatTemplate::kChatml) {
    open_ = need("<|im_start|>");
    close_ = need("<|im_end|>");
  } else if (chat == ChatTemplate::kLlama3) {
    begin_ = need("<|begin_of_text|>");
    open_ = need("<|start_header_id|>");
    header_ = need("<|end_header_id|>");
    close_ = need("<|eot_id|>");
  }
}

void ChatRenderer::put_text(std::string_view text, bool learned, MaskedTokens& out) const {
  const size_t before = out.size();
  tokenizer_->append_encoded(text, {.parse_special_tokens = false}, out);
  if (learned) return;
  for (size_t i = before; i < out.size(); ++i) out[i] = ~out[i];
}

void ChatRenderer::append(const std::vector<ChatMessage>& messages, MaskedTokens& out) const {
  for (const ChatMessage& message : messages) {
    const bool reply = message.role == "assistant";
    // A reply begins at a boundary of tokens, as it does when the model writes it; other messages
    // are one text with their header, as a whole prompt would be.
    std::string before;
    std::string_view content = message.content;
    switch (chat_) {
      case ChatTemplate::kPlain:
        before = message.role + ": ";
        break;
      case ChatTemplate::kChatml:
        out.push_back(~open_);
        before = message.role + "\n";
        break;
      case ChatTemplate::kLlama3:
        out.push_back(~open_);
        put_text(message.role, false, out);
        out.push_back(~header_);
        before = "\n\n";
        content = trim(content);
        break;
    }
    if (reply) {
      put_text(before, false, out);
      put_text(content, true, out);
    } else {
      put_text(before.append(content), false, out);
    }
    switch (chat_) {
      case ChatTemplate::kPlain:
        put_text("\n", reply, out);
        break;
      case ChatTemplate::kChatml:
        out.push_back(reply ? close_ : ~close_);
        put_text("\n", false, out);
        break;
      case ChatTemplate::kLlama3:
        out.push_back(reply ? close_ : ~close_);
        break;
    }
  }
}

}  // namespace ds
