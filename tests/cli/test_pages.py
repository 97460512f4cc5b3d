"""Help, docs/cli.md, ds.hpp and README say the same as the program, the header and the examples."""
import re
import unittest

from cli_case import SOURCE, CliCase, run

SUBCOMMANDS = ["train", "generate", "eval", "tokenize", "tokenizer-train", "inspect", "export",
               "convert", "bench", "launch", "plan", "config", "view", "report", "merge"]


class Help(CliCase):
    def test_no_arguments_print_the_help(self):
        self.assertEqual(self.ds().text, self.ds("--help").text)
        for name in SUBCOMMANDS:
            self.assertRegex(self.ds().text, rf"(?m)^  {name} ")

    def test_every_subcommand(self):
        for name in SUBCOMMANDS:
            with self.subTest(subcommand=name):
                text = self.ds(name, "--help").text
                self.assertTrue(text.startswith(f"Usage: ds {name}"))
                self.assertEqual(text, self.ds(name, "-h").text)
                self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_version(self):
        version = re.search(r"project\(ds VERSION (\S+)",
                            (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(self.ds("--version").text, f"ds {version}\n")


class Pages(CliCase):
    def test_cli_page_lists_the_options_of_the_help(self):
        page = (SOURCE / "docs/cli.md").read_text()
        sections = dict(re.findall(r"(?ms)^## ds (\S+)\n(.*?)(?=^## |\Z)", page))
        self.assertEqual(sorted(sections), sorted(SUBCOMMANDS))
        # A command below a command has a section below its section.
        for name, text in list(sections.items()):
            for below, its_text in re.findall(r"(?ms)^### ds (\S+ \S+)\n(.*?)(?=^### |\Z)", text):
                sections[below] = its_text
            sections[name] = re.split(r"(?m)^### ds ", text)[0]
        for name, text in sections.items():
            with self.subTest(subcommand=name):
                in_help = re.findall(r"(?m)^  (--[a-z0-9-]+(?: [A-Z]\S*)?)",
                                     self.ds(*name.split(), "--help").text)
                in_page = re.findall(r"(?m)^\| `(--[^`]+)` \|", text)
                self.assertEqual(sorted(in_page), sorted(in_help))

    def test_default_configuration_is_the_documented_one(self):
        page = (SOURCE / "docs/cli.md").read_text()
        documented = re.search(r"(?s)Without `--config` the program uses\n\n```json\n(.*?)\n```",
                               page).group(1)
        self.assertIn(f'R"({documented})"', (SOURCE / "tools/run_config.cc").read_text())

    def test_readme_shows_the_c_example(self):
        readme = (SOURCE / "README.md").read_text()
        shown = re.search(r"(?s)```c\n(.*?)```", readme).group(1)
        self.assertEqual(shown, (SOURCE / "examples/train_c.c").read_text())

    def test_readme_links_exist(self):
        for page in ["README.md", "docs/index.md", "docs/cli.md", "docs/add-an-operator.md"]:
            folder = (SOURCE / page).parent
            # Code has no links.
            text = re.sub(r"(?s)```.*?```|`[^`]*`", "", (SOURCE / page).read_text())
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                self.assertTrue((folder / link).exists(), f"{page} links to {link}")


class Scripts(CliCase):
    def test_scripts_parse_and_explain_themselves(self):
        for name in ["setup", "quickstart", "test", "format", "docs", "common.sh"]:
            with self.subTest(script=name):
                done = run(self.folder, ["-n", SOURCE / "scripts" / name], program="bash")
                self.assertEqual((done.returncode, done.error), (0, ""))
        for name in ["setup", "quickstart", "docs"]:
            script = SOURCE / "scripts" / name
            self.assertIn(f"scripts/{name}", run(self.folder, ["--help"], program=script).text)
            self.assertEqual(run(self.folder, ["--bogus"], program=script).returncode, 2)

    def test_setup_lists_its_packages(self):
        sets = [set(run(self.folder, ["--list", *more], program=SOURCE / "scripts/setup").text.split())
                for more in ([], ["--text"], ["--test"])]
        self.assertIn("libhwy-dev", sets[0])
        self.assertEqual(sets[1] - sets[0], {"fortunes"})
        self.assertIn("libgtest-dev", sets[2] - sets[0])


class Header(CliCase):
    def test_every_function_is_reachable_through_ds_hpp(self):
        declared = set((SOURCE / "tests/abi/ds.symbols").read_text().split())
        # Left to C: the memory of the caller's pool, and texts of handles, which exceptions carry.
        declared -= {"ds_allocator_set", "ds_handle_error_message"}
        wrapped = re.sub(r"//[^\n]*", "", "".join(path.read_text()
                                                  for path in (SOURCE / "include/ds").glob("*.hpp")))
        self.assertGreater(len(declared), 50)
        self.assertEqual([n for n in sorted(declared) if not re.search(rf"\b{n}\b", wrapped)], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
