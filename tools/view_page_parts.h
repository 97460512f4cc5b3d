// view_page.html, .css and .js as texts; cmake/EmbedText.cmake makes the source.
#pragma once

namespace tool {

extern const char* const kViewPageHtml;
extern const char* const kViewPageCss;
extern const char* const kViewPageJs;

}  // namespace tool
