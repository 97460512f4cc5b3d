"""scripts/docs: the site builds without a warning, needs no network, its links lead somewhere, its
search finds functions from file://, and mistakes in pages fail the build.

Nothing is built again where all that this follows from is as it was when it last passed."""
import hashlib
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

SOURCE = pathlib.Path(os.environ["DS_SOURCE"])
TOOLS = SOURCE / "build/site-tools"
SITE = SOURCE / "build/site"
BROWSER = next(filter(None, map(shutil.which, ["chromium-headless-shell", "chromium"])), None)
# Attributes that make a browser load something.
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"),
         ("object", "data"), ("embed", "src"), ("form", "action")}
PASSED = SOURCE / "build/site-work/passed"


def all_it_follows_from():
    """A digest of pages, headers, tools and the names of all files, to which pages may link; None
    where git does not know the names."""
    listed = subprocess.run(["git", "ls-files"], cwd=SOURCE, capture_output=True, text=True)
    if listed.returncode != 0:
        return None
    read = [path for path in listed.stdout.splitlines()
            if path.startswith(("docs/", "include/", "tests/docs/")) or path in ("scripts/docs", "scripts/common.sh")
            or path.endswith((".md", "CMakeLists.txt"))]
    version = subprocess.run(["doxygen", "--version"], capture_output=True, text=True)
    digest = hashlib.sha256()
    digest.update("\0".join([listed.stdout, version.stdout, str(BROWSER), sys.version,
                             (TOOLS / "installed.txt").read_text(),
                             *map(str, sorted((SOURCE / "build/api").glob("*")))]).encode())
    for path in map(SOURCE.joinpath, read):
        digest.update(path.read_bytes() if path.exists() else b"gone")
        digest.update(b"\0")
    return digest.hexdigest()


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.loaded, self.links, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif (tag, name) in LOADS or (tag == "link" and name == "href"):
                self.loaded.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def built():
    """The pages of the site but those that doxygen made, by their paths in it."""
    return {path.relative_to(SITE): Links(path.read_text()) for path in sorted(SITE.rglob("*.html"))
            if path.relative_to(SITE).parts[0] not in ("cpp", "python", "java", "rust")}


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([SOURCE / "scripts/docs"], capture_output=True, text=True)
        if done.returncode != 0 or "WARNING" in done.stdout + done.stderr:
            raise AssertionError(f"scripts/docs\n{done.stdout}\n{done.stderr}")
        cls.pages = built()

    def test_every_page_of_the_documentation_is_there(self):
        for path in (SOURCE / "docs").glob("*.md"):
            self.assertIn(pathlib.Path(path.stem + ".html"), self.pages)
        self.assertIn(pathlib.Path("api/index.html"), self.pages)
        self.assertTrue((SITE / "cpp/index.html").exists())

    def test_nothing_comes_from_elsewhere(self):
        for name, page in self.pages.items():
            for target in page.loaded:
                self.assertNotRegex(target, r"^(https?:)?//", f"{name} loads {target}")
        for path in (SITE / "_static").rglob("*.css"):
            self.assertNotRegex(path.read_text(), r"(@import|url\()\s*[\"']?(https?:)?//", path.name)

    def test_links_lead_somewhere(self):
        checked = 0
        for name, page in self.pages.items():
            for target in page.links + page.loaded:
                parts = urllib.parse.urlsplit(target)
                if parts.scheme or target.startswith("#"):
                    self.assertTrue(parts.scheme or parts.fragment in page.anchors | {""},
                                    f"{name} links to {target}")
                    continue
                path = (SITE / name).parent / urllib.parse.unquote(parts.path)
                self.assertTrue(path.exists(), f"{name} links to {target}")
                other = self.pages.get(pathlib.Path(os.path.relpath(path, SITE)))
                if other and parts.fragment:
                    self.assertIn(parts.fragment, other.anchors, f"{name} links to {target}")
                checked += 1
        self.assertGreater(checked, 1000)

    def test_every_function_is_described(self):
        headers = [SOURCE / "include/ds.h", *(SOURCE / "include/ds").glob("*.h")]
        text = "\n".join(re.sub(r"(?s)/\*.*?\*/", "", path.read_text()) for path in headers)
        declared = set(re.findall(r"(?m)^DS_API [^;(]*?\b(ds_\w+)\(", text))
        self.assertGreater(len(declared), 100)
        anchors = set().union(*(page.anchors for name, page in self.pages.items()
                                if name.parts[0] == "api"))
        self.assertEqual({name for name in declared if f"c.{name}" not in anchors}, set())

    def test_marks_of_the_header_are_words(self):
        page = (SITE / "api/base_h.html").read_text()
        described = re.search(r'(?s)<dt [^>]*id="c\.ds_log_set".*?</dd>', page).group(0)
        self.assertNotIn("DS_NULLABLE", described)
        self.assertIn("May be NULL:", described)

    def test_names_in_pages_lead_to_the_reference(self):
        page = self.pages[pathlib.Path("embedding.html")]
        self.assertTrue(any(re.fullmatch(r"api/\w+\.html#c\.ds_log_set", link) for link in page.links),
                        page.links)

    @unittest.skipUnless(BROWSER, "no chromium-headless-shell: scripts/setup --test installs it")
    def test_search_works_from_files(self):
        with tempfile.TemporaryDirectory() as profile:
            for words, expected in {"ds_engine_train_batch": r"api/\w+\.html#c\.ds_engine_train_batch",
                                    "gradient clipping": r"configuration\.html"}.items():
                done = subprocess.run(
                    [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                     "--enable-logging=stderr", f"--user-data-dir={profile}",
                     "--virtual-time-budget=5000",
                     f"{(SITE / 'search.html').as_uri()}?q={urllib.parse.quote(words)}"],
                    capture_output=True, text=True, timeout=60)
                results = re.search(r'(?s)<ul [^>]*class="search".*?</ul>', done.stdout)
                self.assertIsNotNone(results, done.stdout[-3000:])
                self.assertRegex(results.group(0), f'href="{expected}')
                self.assertNotIn("CONSOLE", done.stderr)


class Mistakes(unittest.TestCase):
    """A small checkout with one mistake at a time."""
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ds-site-"))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        for folder in ("docs/api", "docs/decisions", "include/ds", "build"):
            (self.root / folder).mkdir(parents=True)
        shutil.copytree(SOURCE / "docs/site", self.root / "docs/site")
        for name in ("docs/Doxyfile", "CMakeLists.txt"):
            shutil.copy(SOURCE / name, self.root / name)
        self.write("include/ds.h", "/** @file\n * All of it. */\n/** A type. */\ntypedef int ds_status;\n"
                                   "/** Does it.\n * @param x  a number\n * See ds_status. */\n"
                                   "ds_status ds_do(int x);\n")
        self.write("include/ds.hpp", "// @file\n// More.\n")
        self.write("include/ds/part.hpp", "// @file\n// A part of it.\n")
        self.write("docs/index.md", "# Documentation\n\nUsing it:\n\n* [README](../README.md)\n"
                                    "* [One](one.md): a page\n* [`ds.h`](../include/ds.h)\n"
                                    "* [Security](../SECURITY.md)\n* [Changes](../CHANGELOG.md)\n"
                                    "* [Contributing](../CONTRIBUTING.md)\n* [Decisions](decisions/index.md)\n")
        self.write("docs/decisions/index.md", "# Decisions\n\n[The first](0001.md)\n")
        self.write("docs/decisions/0001.md", "# The first\n\nText.\n")
        self.write("docs/one.md", "# One\n\n## Part of it\n\n`ds_do` and [this](#part-of-it)\n")
        for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/api/mainpage.md"):
            self.write(name, f"# {name}\n\nText.\n")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def build(self):
        done = subprocess.run([TOOLS / "bin/python", "-B", self.root / "docs/site/build.py", self.root,
                               self.root / "build/work", self.root / "build/site"],
                              capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def refused(self, expected):
        status, text = self.build()
        self.assertNotEqual(status, 0, text)
        self.assertRegex(text, expected)

    def test_without_a_mistake(self):
        self.assertEqual(self.build(), (0, ""))
        page = (self.root / "build/site/one.html").read_text()
        self.assertIn('href="api/ds_h.html#c.ds_do"', page)
        api = Links((self.root / "build/site/api/ds_h.html").read_text())
        self.assertTrue({"c.ds_do", "c.ds_status"} <= api.anchors)

    def test_other_languages_are_copied_in(self):
        (self.root / "build/api/rust").mkdir(parents=True)
        self.write("build/api/rust/index.html", "<p>Rust")
        self.assertEqual(self.build(), (0, ""))
        self.assertEqual((self.root / "build/site/rust/index.html").read_text(), "<p>Rust")
        self.assertIn('href="../rust/index.html"', (self.root / "build/site/api/index.html").read_text())

    def test_a_link_to_nothing(self):
        self.write("docs/one.md", "# One\n\n[there](two.md)\n")
        self.refused(r"docs/one.md links to two.md, which is not there")

    def test_an_anchor_that_is_not_there(self):
        self.write("docs/one.md", "# One\n\n[there](#two)\n")
        self.refused("one.md:3: WARNING: .*two")

    def test_a_page_that_the_index_forgets(self):
        self.write("docs/two.md", "# Two\n")
        self.refused("two.md: WARNING: document isn't included in any toctree")

    def test_a_type_that_nobody_describes(self):
        self.write("include/ds.h", "/** @file\n * All. */\n/** Does it. */\nint ds_do(ds_gone* x);\n")
        self.refused("reference target not found: ds_gone")


if __name__ == "__main__":
    if not (TOOLS / "installed.txt").exists() or not shutil.which("doxygen"):
        print("skipped: scripts/docs --setup installs the generator, scripts/setup --test doxygen")
        sys.exit(77)
    state = all_it_follows_from()
    if state and SITE.exists() and PASSED.exists() and PASSED.read_text() == state:
        print(f"nothing has changed since {SITE} passed; to build it again, remove {PASSED}")
        sys.exit(0)
    PASSED.unlink(missing_ok=True)
    if not unittest.main(verbosity=2, exit=False).result.wasSuccessful():
        sys.exit(1)
    if state:
        PASSED.write_text(state)
