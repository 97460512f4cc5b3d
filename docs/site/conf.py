"""Sphinx's settings; scripts/docs lays out the sources and starts it. Nothing of the site comes from
elsewhere: no fonts, no scripts."""
import os

project = "ds"
author = "The ds authors"
version = release = os.environ.get("DS_SITE_VERSION", "")
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = []

myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 5
# "JSON" with comments, shell with prompts: shown without colours instead of a warning.
suppress_warnings = ["misc.highlighting_failure"]
smartquotes = False

# Every type of a declaration exists, but those of C itself and of DLPack.
nitpicky = True
nitpick_ignore_regex = [("c:identifier", r"u?int\d+_t|size_t|DLManagedTensor\w*|DL\w+|cudaStream_t")]

html_theme = "furo"
html_title = f"ds {version}"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
# Summaries would be fetched, which browsers refuse to pages that are opened as files.
html_show_search_summary = False
html_last_updated_fmt = None
html_static_path = []
html_theme_options = {"footer_icons": [], "navigation_with_keys": True}
html_show_copyright = False
