#!/usr/bin/env python3
"""abi_diff.py finds what breaks compiled programs, and lets pass what does not: abi_diff_test.py CC."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

import abi_diff

CC = "cc"
HEADER = """
#include <stdint.h>
#define DS_API __attribute__((visibility("default")))
#define DS_EXPERIMENTAL
#define DS_VERSION_MAJOR 0
#define DS_VERSION_MINOR 5
#define DS_VERSION_PATCH 0
#define DS_MAX_AXES 8
typedef int32_t ds_status;
enum ds_kind { DS_KIND_CPU = 0, DS_KIND_CUDA = 1 };
typedef struct ds_model ds_model;
typedef struct ds_info {
  int64_t struct_size;
  int64_t count;
  double ratio;
} ds_info;
typedef struct ds_pair {
  int32_t first;
  int32_t second;
} ds_pair;
/** Makes one. */
DS_API ds_status ds_model_create(const char* json, int32_t kind, ds_model** out_model);
DS_API ds_status ds_model_info(const ds_model* model, ds_info* info);
DS_API ds_status ds_model_pair(const ds_model* model, ds_pair* pair);
DS_API void ds_model_set_hook(ds_model* model, void (*hook)(void* data, int32_t step), void* data);
DS_API DS_EXPERIMENTAL ds_status ds_model_try(ds_model* model,
                                              int32_t how);
DS_API void ds_model_destroy(ds_model* model);
"""
ADDED = "DS_API double ds_model_loss(const ds_model* model);\n"


class AbiDiff(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.include = pathlib.Path(folder.name)
        self.baselines = self.include / "baselines"
        self.write(HEADER)
        self.call("baseline")

    def write(self, text):
        (self.include / "ds.h").write_text(text)

    def call(self, command):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = abi_diff.main(["abi_diff.py", command, str(self.include), str(self.baselines),
                                    CC])
        self.assertEqual(status, 0)
        return said.getvalue()

    def changed(self, *replacements):
        text = HEADER
        for old, new in replacements:
            self.assertIn(old, text)
            text = text.replace(old, new)
        self.write(text)

    def breaks(self, *replacements):
        self.changed(*replacements)
        with self.assertRaisesRegex(SystemExit, "break compiled programs"):
            self.call("check")
        # The same is allowed in the next minor version before 1.0.
        self.changed(*replacements, ("VERSION_MINOR 5", "VERSION_MINOR 6"))
        self.assertIn("as the version says", self.call("check"))

    def works(self, *replacements):
        self.changed(*replacements)
        self.assertIn("still work", self.call("check"))

    def test_the_same_header(self):
        self.works()

    def test_a_removed_function(self):
        self.breaks(("DS_API void ds_model_destroy(ds_model* model);\n", ""))

    def test_a_parameter_of_another_type(self):
        self.breaks(("int32_t kind", "int64_t kind"))

    def test_a_parameter_of_a_callback(self):
        self.breaks(("int32_t step", "int64_t step"))

    def test_a_new_parameter(self):
        self.breaks(("ds_info* info)", "ds_info* info, int32_t how)"))

    def test_a_return_type(self):
        self.breaks(("DS_API void ds_model_destroy", "DS_API ds_status ds_model_destroy"))

    def test_a_member_in_the_middle(self):
        self.breaks(("  double ratio;", "  int64_t more;\n  double ratio;"))

    def test_a_removed_member(self):
        self.breaks(("  double ratio;\n", ""))

    def test_a_member_of_another_type(self):
        self.breaks(("double ratio", "int64_t ratio"))

    def test_a_struct_without_size_that_grows(self):
        self.breaks(("  int32_t second;", "  int32_t second;\n  int32_t third;"))

    def test_the_value_of_an_enumerator(self):
        self.breaks(("DS_KIND_CUDA = 1", "DS_KIND_CUDA = 2"))

    def test_the_value_of_a_macro(self):
        self.breaks(("DS_MAX_AXES 8", "DS_MAX_AXES 16"))

    def test_a_removed_constant(self):
        self.breaks((", DS_KIND_CUDA = 1", ""))

    def test_a_new_function(self):
        self.works(("/** Makes one. */\n", ADDED))

    def test_a_new_constant(self):
        self.works(("DS_KIND_CUDA = 1", "DS_KIND_CUDA = 1, DS_KIND_OTHER = 2"))

    def test_a_sized_struct_that_grows_at_its_end(self):
        self.works(("  double ratio;", "  double ratio;\n  int64_t more;"))

    def test_a_sized_struct_that_grows_and_changes(self):
        self.breaks(("  double ratio;", "  int64_t ratio;\n  int64_t more;"))

    def test_a_member_in_the_padding_of_a_sized_struct(self):
        half = ("  double ratio;", "  double ratio;\n  int32_t how;")
        self.changed(half)
        self.call("baseline")
        self.breaks((half[0], half[1] + "\n  int32_t more;"))

    def test_an_experimental_function_may_change(self):
        self.works(("int32_t how", "int64_t how"))

    def test_other_names_of_parameters(self):
        self.works(("const char* json", "const char* shape"))

    def test_from_1_0_on_a_minor_version_may_not_break(self):
        first = ("VERSION_MAJOR 0", "VERSION_MAJOR 1")
        self.changed(first)
        self.call("baseline")
        gone = ("DS_API void ds_model_destroy(ds_model* model);\n", "")
        self.changed(first, gone, ("VERSION_MINOR 5", "VERSION_MINOR 6"))
        with self.assertRaisesRegex(SystemExit, "1.5.0 to 1.6.0.*major"):
            self.call("check")
        self.changed(("VERSION_MAJOR 0", "VERSION_MAJOR 2"), gone)
        self.assertIn("as the version says", self.call("check"))

    def test_an_older_version_than_the_baseline(self):
        self.changed(("VERSION_MINOR 5", "VERSION_MINOR 4"))
        with self.assertRaisesRegex(SystemExit, "older than the baseline"):
            self.call("check")

    def test_no_baseline(self):
        for path in self.baselines.iterdir():
            path.unlink()
        self.assertTrue(self.call("check").startswith("skipped"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CC = sys.argv.pop(1)
    unittest.main()
