"""Lays out the sources of the site and builds it: docs/*.md, the pages that they link to, and the API
reference. scripts/docs runs it with the Python of build/site-tools.

usage: build.py ROOT WORK SITE
  ROOT  the checkout;  WORK  a folder for sources and intermediate files;  SITE  the result
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

from api_pages import IDENTIFIER, Api

# Pages outside docs/ that belong to the site, by their names in it.
PAGES_ELSEWHERE = {"README.md": "readme.md", "SECURITY.md": "security.md",
                   "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# Folders of docs whose pages are pages of the site.
FOLDERS = ("properties", "decisions")
LANGUAGES = {".c": "c", ".h": "c", ".cc": "cpp", ".hpp": "cpp", ".py": "python", ".json": "json",
             ".fbs": "text", ".rs": "rust", ".java": "java", ".ipynb": "json", ".txt": "text",
             ".toml": "toml", ".xml": "xml"}
# API pages that other tools make: folders of HTML below build/api, which are copied in when they
# are there.
OTHER_APIS = {"python": ("Python", "pdoc"), "java": ("Java", "javadoc"), "rust": ("Rust", "rustdoc")}
CODE = re.compile(r"(?ms)^( *)(```+|~~~+).*?^\1\2\s*$")
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


class Site:
    def __init__(self, root, work, site):
        self.root, self.work, self.site = root, work, site
        self.source = work / "source"
        self.files = set()  # of the checkout that get a page because a page links to them
        self.mistakes = []

    def build(self):
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir(parents=True)
        shutil.copy(self.root / "docs/site/conf.py", self.source)
        self.run_doxygen()
        self.api = Api(self.work / "xml", self.root / "include")
        self.pages()
        self.file_pages()
        self.api_pages()
        self.index()
        if self.mistakes:
            sys.exit("docs: " + "\ndocs: ".join(self.mistakes))
        self.run_sphinx()
        self.copy_references()

    # ---- doxygen ----

    def doxygen(self, settings):
        # Tests run it in the same checkout: each has an output folder of its own.
        done = subprocess.run(["doxygen", "-"], cwd=self.root, text=True, capture_output=True,
                              input="@INCLUDE = docs/Doxyfile\n" + settings,
                              env={**os.environ, "DS_DOCS_OUT": str(self.work)})
        if done.returncode != 0:
            sys.exit(f"docs: doxygen failed\n{done.stderr}")

    def run_doxygen(self):
        for name in ("xml", "html"):
            shutil.rmtree(self.work / name, ignore_errors=True)
        headers = ["include/ds.h", *sorted(f"include/ds/{path.name}"
                                           for path in (self.root / "include/ds").glob("*.h"))]
        self.doxygen(f"INPUT = {' '.join(headers)}\nUSE_MDFILE_AS_MAINPAGE =\nGENERATE_HTML = NO\n"
                     "GENERATE_XML = YES\nXML_OUTPUT = xml\nXML_PROGRAMLISTING = NO\n"
                     "INPUT_FILTER = \"python3 -B docs/site/header_filter.py\"\n"
                     "PREDEFINED += DS_EXPERIMENTAL= \"DS_DEPRECATED(text)=\"\n")
        self.doxygen("HTML_OUTPUT = html\n")

    # ---- Pages of the checkout ----

    def pages(self):
        for path in sorted((self.root / "docs").glob("*.md")):
            if path.name != "index.md":
                self.page(path, path.name)
        for folder in (name for name in FOLDERS if (self.root / "docs" / name).is_dir()):
            for path in sorted((self.root / "docs" / folder).glob("*.md")):
                self.page(path, f"{folder}/{path.name}")
            self.list_below(folder)
        self.page(self.root / "docs/api/mainpage.md", "api/rules.md")
        for name, page in PAGES_ELSEWHERE.items():
            self.page(self.root / name, page)

    def list_below(self, folder):
        """The pages of a folder below its index in the navigation."""
        index = self.source / folder / "index.md"
        names = sorted(path.stem for path in index.parent.glob("*.md") if path != index)
        index.write_text(index.read_text() + "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n")

    def page(self, path, name):
        target = self.source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.converted(path.read_text(), path, name))

    def converted(self, text, path, name):
        """A page of the checkout as one of the site: links lead to pages of the site, names of the
        API to their descriptions."""
        out, at = [], 0
        for block in CODE.finditer(text):
            out += [self.prose(text[at:block.start()], path, name), block.group(0)]
            at = block.end()
        return "".join([*out, self.prose(text[at:], path, name)])

    def prose(self, text, path, name):
        links = LINK.sub(lambda m: m.group(1) + self.link(m.group(2), path, name) + m.group(3), text)
        # A name within the text of a link stays as it is: the link leads elsewhere.
        pieces = re.split(r"(?s)(\[(?:[^\[\]]|`[^`]*`)*\]\([^)\s]*\)|^#.*?$)", links, flags=re.M)
        return "".join(piece if i % 2 else SPAN.sub(self.span, piece)
                       for i, piece in enumerate(pieces))

    def span(self, found):
        name = IDENTIFIER.fullmatch(found.group(2))
        if not name or name.group(3) or name.group(1) not in self.api.names:
            return found.group(0)
        return f"{{c:{self.api.names[name.group(1)]}}}`{name.group(1)}`"

    def link(self, target, path, name):
        if re.match(r"[a-z]+:|#", target):
            return target
        file, _, anchor = target.partition("#")
        place = pathlib.Path(os.path.normpath(path.parent / file))
        try:
            inside = place.relative_to(self.root).as_posix()
        except ValueError:
            inside = ".."
        if inside.startswith("..") or not place.exists():
            self.mistakes.append(f"{path.relative_to(self.root)} links to {target}, which is not there")
            return target
        page = self.page_of(inside, place)
        there = os.path.relpath(page, pathlib.Path(name).parent)
        return there + (f"#{anchor}" if anchor and page.endswith(".md") else "")

    def page_of(self, inside, place):
        if inside in PAGES_ELSEWHERE:
            return PAGES_ELSEWHERE[inside]
        if inside == "docs/api/mainpage.md":
            return "api/rules.md"
        if re.fullmatch(rf"docs/(({'|'.join(FOLDERS)})/)?[^/]+\.md", inside):
            return inside.removeprefix("docs/")
        if inside == "include/ds.h":
            return "api/index.md"
        self.files.add(inside)
        return f"files/{inside}.md"

    def file_pages(self):
        """A page for each file that is no page, so that links to examples work."""
        for inside in sorted(self.files):
            place, target = self.root / inside, self.source / f"files/{inside}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            title = f"---\norphan: true\n---\n\n# {inside}\n\n"
            if place.is_dir():
                names = sorted(p.name + "/" * p.is_dir() for p in place.iterdir())
                target.write_text(title + "".join(f"* `{name}`\n" for name in names))
            elif place.suffix == ".md":
                text = re.sub(r"\A# .*\n", "", place.read_text())
                target.write_text(title + LINK.sub(r"](<>)", text))
            else:
                language = LANGUAGES.get(place.suffix, "text")
                fence = "`" * 6
                target.write_text(f"{title}{fence}{language}\n{place.read_text()}\n{fence}\n")

    # ---- The API ----

    def api_pages(self):
        headers = [header for header, entries in self.api.files.items() if entries]
        order = [header for header in self.order() if header in headers]
        names = {}
        for header in order + sorted(set(headers) - set(order)):
            names[header] = re.sub(r"\W", "_", header.removeprefix("ds/").removesuffix(".h")) + "_h"
            page = self.source / "api" / f"{names[header]}.md"
            page.parent.mkdir(exist_ok=True)
            page.write_text(self.api.page(header))
        rows = "".join(f"* [`{header}`]({name}.md)\n" for header, name in names.items())
        tree = "".join(f"{name}\n" for name in names.values())
        others = "".join(
            f"* <a href=\"../{folder}/index.html\">{language}</a>\n"
            if (self.root / "build/api" / folder / "index.html").exists() else
            f"* {language}: not part of this build of the site (made with {tool})\n"
            for folder, (language, tool) in OTHER_APIS.items())
        (self.source / "api/index.md").write_text(
            "# C API\n\nThe C interface, which all others stand on, by header. "
            "[What holds for every function](rules.md).\n\n" + rows +
            "\nOther languages:\n\n* <a href=\"../cpp/index.html\">C++</a>: `ds.hpp`\n" + others +
            "\n```{toctree}\n:hidden:\n\nrules\n" + tree + "```\n")

    def order(self):
        """Headers in the order in which ds.h includes them."""
        text = (self.root / "include/ds.h").read_text()
        return ["ds.h", *re.findall(r'#include "(ds/[^"]+)"', text)]

    # ---- The whole ----

    def index(self):
        """docs/index.md with its lists as the navigation."""
        text = (self.root / "docs/index.md").read_text()
        page = self.converted(text, self.root / "docs/index.md", "index.md")
        trees, seen = [], set()
        for title, items in re.findall(r"(?ms)^([^\n*#][^\n]*):\n\n((?:\*.*?\n(?:  .*?\n)*)+)", page):
            targets = []
            for name, target in re.findall(r"\[((?:[^\[\]])+)\]\(([^)#\s]+\.md)[^)]*\)", items):
                if target not in seen and not target.startswith(("files/", "api/rules")):
                    shown = "C API" if target == "api/index.md" else name.replace("`", "")
                    targets.append(f"{shown} <{target.removesuffix('.md')}>")
                    seen.add(target)
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(targets) + "\n```")
        (self.source / "index.md").write_text(page + "\n" + "\n\n".join(trees) + "\n")

    def run_sphinx(self):
        version = re.search(r"project\(ds VERSION (\S+)",
                            (self.root / "CMakeLists.txt").read_text()).group(1)
        shutil.rmtree(self.site, ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-j", "2",
             "-d", self.work / "doctrees", self.source, self.site],
            env={**os.environ, "DS_SITE_VERSION": version})
        if done.returncode != 0:
            sys.exit("docs: the site has mistakes, see above (sources: build/site-work/source)")

    def copy_references(self):
        shutil.copytree(self.work / "html", self.site / "cpp", dirs_exist_ok=True)
        for folder in OTHER_APIS:
            made = self.root / "build/api" / folder
            if (made / "index.html").exists():
                shutil.copytree(made, self.site / folder, dirs_exist_ok=True)
        shutil.rmtree(self.site / "_sources", ignore_errors=True)  # left empty
        (self.site / ".buildinfo").unlink(missing_ok=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    Site(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:])).build()
