#include "view_page.h"

#include <string_view>

#include "view_page_parts.h"

namespace tool {
namespace {

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// JSON in a script element: no character that HTML could take for the element's end or a comment's
// begin. All of them stand in texts of the document, where JSON has another spelling for them.
std::string escape_json(std::string_view json) {
  std::string out;
  out.reserve(json.size() + json.size() / 16);
  for (const char c : json) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void put(std::string& page, std::string_view place, std::string_view text) {
  page.replace(page.find(place), place.size(), text);
}

}  // namespace

std::string view_page(const std::string& title, const Json& run) {
  std::string page = kViewPageHtml;
  // The last place first: what is put in is never searched.
  put(page, "@SCRIPT@", kViewPageJs);
  put(page, "@RUN@", escape_json(run.dump(-1, ' ', false, Json::error_handler_t::replace)));
  put(page, "@STYLE@", kViewPageCss);
  put(page, "@TITLE@", escape_html(title));
  return page;
}

}  // namespace tool
