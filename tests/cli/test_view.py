"""ds view: the page and the summary of a run, from what ds train wrote, from other writers' records,
from damaged and hostile ones; and the page as a browser draws it, where chromium-headless-shell or
chromium is (scripts/setup --test)."""
import fcntl
import html.parser
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from cli_case import CONFIG, CliCase

BROWSER = next(filter(None, map(shutil.which, ["chromium-headless-shell", "chromium"])), None)
HOSTILE = "</script><script>document.body.dataset.owned=1</script><img src=x onerror=alert(1)>&\"'\u2028"


class Page(html.parser.HTMLParser):
    """The elements of a page with their attributes, and the document of its script."""
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.open = [], [], None
        self.feed(text)
        self.run = json.loads(next(text for attributes, text in self.scripts
                                   if attributes.get("id") == "run"))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open = (dict(attributes), []) if tag == "script" else self.open

    def handle_data(self, data):
        if self.open:
            self.open[1].append(data)

    def handle_endtag(self, tag):
        if tag == "script":
            self.scripts.append((self.open[0], "".join(self.open[1])))
            self.open = None


def lines(steps, **values):
    return [dict({"step": step, "loss": 5 - step / 100, "lr": 1e-3, "grad_norm": 1.5, "applied": True,
                  "loss_scale": 1.0, "tokens": 64, "tokens_per_s": 640.0, "seconds": 0.1,
                  "samples": step}, **{key: value(step) for key, value in values.items()})
            for step in steps]


class ViewCase(CliCase):
    def record(self, name, records):
        return self.write(name, "".join(
            (one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))

    def summary(self, *arguments):
        return json.loads(self.ds("view", *arguments, "--json").text)

    def page(self, *arguments):
        return Page(self.ds("view", *arguments, "--output", "-").text)


class Runs(ViewCase):
    def test_a_run_of_ds_train(self):
        self.write("config.json", dict(CONFIG, gradient_clipping=0.5))
        self.train(12, "--save", "out", "--save-interval", 5, "--metrics", "out/metrics.jsonl",
                   "--eval-interval", 4)
        self.ds("view", "out")
        page = Page((self.folder / "out/view.html").read_text())
        metrics = self.metrics("out/metrics.jsonl")
        loss = page.run["series"]["loss"]
        self.assertEqual(loss["x"], list(range(1, 13)))
        for shown, line in zip(loss["y"], metrics):
            self.assertAlmostEqual(shown, line["loss"], 5)
        self.assertEqual(page.run["series"]["valid_loss"]["x"], [4, 8, 12])
        self.assertEqual([one["step"] for one in page.run["checkpoints"]], [5, 10, 12])
        self.assertGreater(page.run["checkpoints"][0]["bytes"], 1000)

        summary = self.summary("out")
        self.assertNotIn("series", summary)
        self.assertEqual(summary["summary"]["tokens"], sum(line["tokens"] for line in metrics))
        self.assertEqual(summary["summary"]["values"]["loss"]["last"], metrics[-1]["loss"])
        configuration = summary["run"]["configuration"]
        self.assertEqual(configuration["given"]["gradient_clipping"], 0.5)
        self.assertEqual(configuration["config"]["gradient_clipping"], 0.5)
        self.assertEqual(summary["run"]["model"]["model_type"], "gpt2")
        self.assertEqual(summary["notes"], [])
        # The metrics alone find the checkpoints by what lies beside them.
        self.assertEqual(self.summary("out/metrics.jsonl")["checkpoints"], summary["checkpoints"])

    def test_memory_is_written_when_it_changes(self):
        self.train(6, "--metrics", "m.jsonl")
        first, *rest = self.metrics("m.jsonl")
        self.assertGreater(first["memory"]["parameters"], 0)
        self.assertGreaterEqual(first["memory"]["total"], max(first["memory"].values()))
        before = first["memory"]
        for line in rest:
            self.assertNotEqual(line.get("memory"), before)
            before = line.get("memory", before)
        self.assertEqual(self.summary("m.jsonl")["summary"]["values"]["memory/total"]["most"],
                         before["total"])

    def test_times_of_the_phases(self):
        self.train(3, "--metrics", "without.jsonl")
        self.assertNotIn("forward_seconds", self.metrics("without.jsonl")[-1])
        self.train(3, "--metrics", "m.jsonl", "--set", "wall_clock_breakdown=true")
        for line in self.metrics("m.jsonl"):
            parts = [line[f"{phase}_seconds"] for phase in ("forward", "backward", "update")]
            self.assertGreater(min(parts), 0)
            self.assertLess(sum(parts), 1.5 * line["seconds"])
        self.assertEqual(self.summary("m.jsonl")["summary"]["values"]["forward"]["last"],
                         self.metrics("m.jsonl")[-1]["forward_seconds"])

    def test_no_description_of_another_run_s_record(self):
        with open(self.folder / "m.jsonl", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.train(3, "--metrics", "m.jsonl", status=1)
        self.assertFalse((self.folder / "m.run.json").exists())

    def test_a_monitor_s_record(self):
        self.write("config.json", dict(CONFIG, wall_clock_breakdown=True, jsonl_monitor={
            "enabled": True, "output_path": "runs", "job_name": "one"}))
        self.train(5, "--eval-interval", 5)
        found = self.summary("runs/one")["summary"]
        self.assertEqual((found["rows"], found["last_step"]), (6, 5))
        for name in ("loss", "valid_loss", "grad_norm", "forward", "backward", "update", "tflops"):
            self.assertGreater(found["values"][name]["last"], 0, name)
        self.assertLess(found["values"]["forward"]["most"], 60)  # seconds, not milliseconds

    def test_names(self):
        self.record("a.jsonl", lines(range(1, 4)))
        self.assertIn("wrote a.html", self.ds("view", "a.jsonl").error)
        self.assertEqual(self.summary("a.jsonl", "--output", "b.html")["name"], "a")
        self.assertTrue((self.folder / "b.html").exists())
        (self.folder / "run").mkdir()
        self.assertEqual(self.summary("run", "--metrics", "a.jsonl")["name"], "run")


class Wrong(ViewCase):
    def refused(self, expected, *arguments):
        self.assertRegex(self.ds("view", *arguments, status=1).error, expected)

    def test_no_such_run(self):
        self.record("metrics.jsonl", lines(range(1, 3)))
        self.refused(r"^ds: error: there is no file or folder metrcs.jsonl: did you mean metrics.jsonl\?",
                     "metrcs.jsonl")
        self.refused("there is no file or folder nothing/here: RUN is", "nothing/here")
        self.refused("cannot read the metrics gone.jsonl: there is no such file", ".", "--metrics",
                     "gone.jsonl")

    def test_no_metrics(self):
        self.train(1, "--save", "out")
        self.refused("no metrics in out: it has neither metrics.jsonl nor another", "out")
        self.write("empty.jsonl", "")
        self.refused("no metrics in empty.jsonl: it is empty", "empty.jsonl")
        self.refused(r"no metrics in text.txt: none of its \d+ lines is the record of a step \(line "
                     r"\d+ is not JSON\)", "text.txt")
        for name in ("a.jsonl", "b.jsonl"):
            self.record(name, lines(range(1, 3)))
        self.refused(r"holds several .jsonl files \(a.jsonl, b.jsonl, empty.jsonl\)", ".")
        os.mkfifo(self.folder / "pipe")
        self.refused("cannot read the metrics pipe: no regular file", "pipe")

    def test_a_page_that_cannot_be_written(self):
        self.record("a.jsonl", lines(range(1, 3)))
        self.refused("cannot open nowhere/a.html: No such file", "a.jsonl", "--output",
                     "nowhere/a.html")
        self.refused("cannot write /dev/full", "a.jsonl", "--output", "/dev/full")

    def test_the_command_line(self):
        self.assertIn("run is required", self.ds("view", status=2).error)
        self.assertIn("--output", self.ds("view", "x", "--outptu", "y", status=2).error)
        self.assertIn("did you mean 'view'?", self.ds("veiw", status=2).error)


class Damaged(ViewCase):
    def test_lines(self):
        good = lines(range(1, 9))
        self.record("m.jsonl", [*good[:3], "{\"step\": 4, \"lo", "[1, 2]", "{\"loss\": 1}",
                                "{\"step\": -1}", "{\"step\": 1e300}", "{\"step\": \"5\"}", "",
                                "[" * 100000, "x" * (2 << 20), b"\xff".decode("latin-1"),
                                *good[3:], "{\"step\": 9, \"loss\": NaN, \"lr\": -Infinity}",
                                "{\"step\": 10, \"loss\": 1e999}",
                                "{\"step\": 11, \"loss\": \"4\", \"grad_norm\": -1, \"memory\": 3}"])
        with open(self.folder / "m.jsonl", "a") as file:
            file.write("{\"step\": 12, \"lo")
        found = self.summary("m.jsonl")
        self.assertEqual((found["summary"]["rows"], found["summary"]["last_step"]), (10, 11))
        loss = found["summary"]["values"]["loss"]
        self.assertEqual((loss["rows"], loss["not_finite"]), (9, 1))
        self.assertEqual(found["summary"]["values"]["grad_norm"]["not_finite"], 1)
        self.assertEqual(found["notes"], [
            "10 lines of the metrics are left out; the first one, line 4, is not JSON",
            "1 line has NaN or Infinity, which JSON does not know: taken as values that are not "
            "finite", "the last line is not complete: the run is writing it, or was ended"])

    def test_a_record_that_goes_back(self):
        self.record("m.jsonl", [*lines(range(1, 11), valid_loss=lambda step: -step),
                                *lines(range(6, 8), loss=lambda step: 9.0)])
        page = self.page("m.jsonl")
        self.assertEqual(page.run["series"]["loss"]["x"], list(range(1, 8)))
        self.assertEqual(page.run["series"]["loss"]["y"][-2:], [9.0, 9.0])
        self.assertEqual(page.run["summary"]["best_evaluation"], {"step": 5, "loss": -5})
        self.assertEqual(page.run["summary"]["tokens"], 7 * 64)
        self.assertIn("goes back 1 time, first to step 6", page.run["notes"][0])

    def test_descriptions(self):
        self.record("m.jsonl", lines(range(1, 3)))
        for text in ("{", "[]", "null", ""):
            self.write("m.run.json", text)
            self.assertEqual(self.summary("m.jsonl")["notes"],
                             ["m.run.json is left out: it is damaged (not a JSON object)"])
        with open(self.folder / "m.run.json", "wb") as file:
            file.truncate(17 << 20)
        self.assertIn("larger than 16 MiB", self.summary("m.jsonl")["notes"][0])
        self.write("m.run.json", {"save": 3, "model": "x", "parameters": "y", "configuration": []})
        self.assertEqual(self.summary("m.jsonl")["checkpoints"], [])

    def test_a_damaged_checkpoint_is_a_row(self):
        self.train(4, "--save", "out", "--save-interval", 2, "--metrics", "out/metrics.jsonl")
        for path in (self.folder / "out/global_step2").iterdir():
            path.write_bytes(b"damaged")
        found = {row["tag"]: row for row in self.summary("out")["checkpoints"]}
        self.assertEqual(found["global_step4"]["step"], 4)
        self.assertIn("global_step2", found["global_step2"]["problem"])

    def test_texts_cannot_leave_their_place(self):
        name = HOSTILE.replace("/", "∕")
        self.record(name + ".jsonl", lines(range(1, 4), applied=lambda step: False,
                                           skip_reason=lambda step: HOSTILE,
                                           first_bad_tensor=lambda step: HOSTILE * 100,
                                           memory=lambda step: {HOSTILE[:200]: 5}))
        self.write(name + ".run.json", {"model": {"model_type": HOSTILE}, "data": HOSTILE})
        page = self.page(name + ".jsonl")
        tags = [tag for tag, _ in page.elements]
        self.assertEqual((tags.count("script"), tags.count("img")), (2, 0))
        self.assertEqual(page.run["skips"][0]["reason"], HOSTILE)
        self.assertEqual(page.run["run"]["data"], HOSTILE)
        self.assertLess(len(page.run["skips"][0]["tensor"].encode()), 400)

    def test_the_page_needs_nothing_else(self):
        self.record("m.jsonl", lines(range(1, 4)))
        text = self.ds("view", "m.jsonl", "--output", "-").text
        page = Page(text)
        for tag, attributes in page.elements:
            self.assertNotIn(tag, ("link", "iframe", "object", "embed", "base"))
            self.assertEqual(attributes.keys() & {"src", "href", "srcset", "action"}, set(), tag)
        self.assertNotRegex(text, r"@import|url\((?!#)")
        self.assertIn("default-src 'none'",
                      next(a["content"] for _, a in page.elements if "http-equiv" in a))


class Large(ViewCase):
    def test_extremes_of_many_steps_stay(self):
        count = 200000
        with open(self.folder / "m.jsonl", "w") as file:
            for step in range(1, count + 1):
                loss = {123457: 99.5, 171717: -3.25}.get(step, 2 + (step % 7) / 10)
                file.write(f'{{"step":{step},"loss":{"null" if step == 150001 else loss},'
                           f'"applied":{"false" if step == 150001 else "true"},"tokens":2}}\n')
        page = self.page("m.jsonl")
        loss = page.run["series"]["loss"]
        self.assertTrue(512 <= len(loss["x"]) <= 1024, len(loss["x"]))
        self.assertEqual((max(loss["hi"]), min(loss["lo"])), (99.5, -3.25))
        spike = loss["hi"].index(99.5)
        self.assertTrue(loss["x"][spike] <= 123457 <= loss["x1"][spike])
        self.assertEqual(loss["x"][0], 1)
        self.assertEqual(loss["x1"][-1], count)
        self.assertEqual([a + 1 for a in loss["x1"][:-1]], loss["x"][1:])
        self.assertEqual(len(loss["bad"]), 1)
        self.assertEqual(page.run["summary"]["tokens"], 2 * count)
        self.assertEqual(page.run["summary"]["skipped"], 1)
        self.assertEqual(page.run["summary"]["values"]["loss"]["rows"], count)


@unittest.skipUnless(BROWSER, "no chromium-headless-shell: scripts/setup --test installs it")
class Browser(ViewCase):
    def setUp(self):
        super().setUp()
        self.profile = tempfile.mkdtemp(prefix="ds-browser-")
        self.addCleanup(shutil.rmtree, self.profile, ignore_errors=True)

    def browse(self, path, *options):
        # No sandbox: tests may run as root; the pages are those that this test has written.
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             f"--user-data-dir={self.profile}", "--window-size=1200,1600", *options,
             (self.folder / path).resolve().as_uri()],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        console = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
        return done.stdout.decode(), console

    def drawn(self, path):
        """The attributes that the script left at what it has drawn, by chart and line."""
        text, console = self.browse(path, "--dump-dom")
        self.assertEqual(console, [])
        self.assertNotIn("data-errors", text)
        self.assertNotIn("data-owned", text)
        found = {}
        for chart, inside in re.findall(r'(?s)<figure data-chart="([^"]+)">(.*?)</figure>', text):
            found[chart] = {"marks": int(re.search(r'data-marks="(\d+)"', inside).group(1))}
            for line, points, least, most in re.findall(
                    r'<g data-line="([^"]+)" data-points="(\d+)" data-least="([^"]*)" '
                    r'data-most="([^"]*)">', inside):
                found[chart][line] = (int(points), float(least or "nan"), float(most or "nan"))
        self.assertEqual(len(found), int(re.search(r'data-drawn="(\d+)"', text).group(1)))
        return found, text

    def test_a_run(self):
        self.write("config.json", dict(CONFIG, fp16={"enabled": True, "initial_scale_power": 32}))
        self.train(30, "--save", "out", "--metrics", "out/metrics.jsonl", "--eval-interval", 10)
        self.ds("view", "out")
        metrics = self.metrics("out/metrics.jsonl")
        found, text = self.drawn("out/view.html")
        points, least, most = found["loss"]["loss"]
        losses = [line["loss"] for line in metrics if line["loss"] is not None]
        self.assertEqual(points, len(losses))
        self.assertAlmostEqual(least, min(losses), 4)
        self.assertAlmostEqual(most, max(losses), 4)
        self.assertEqual(found["loss"]["valid_loss"][0], 3)
        skipped = sum(not line["applied"] for line in metrics)
        self.assertGreater(skipped, 0)
        self.assertEqual(found["loss_scale"]["marks"], skipped)
        self.assertEqual(found["grad_norm"]["grad_norm"][0], 30 - skipped)
        self.assertEqual(found["lr"]["lr"][2], max(line["lr"] for line in metrics))
        self.assertEqual(found["memory"]["memory/total"][2], metrics[0]["memory"]["total"])
        for table in ("Checkpoints", "Evaluations", "Skipped steps", "Values that are not defaults"):
            self.assertIn(f'data-table="{table}"', text)
        self.assertIn("global_step30", text)
        picture = self.folder / "page.png"
        self.browse("out/view.html", f"--screenshot={picture}")
        self.assertGreater(picture.stat().st_size, 20000)

    def test_damaged_and_hostile(self):
        name = HOSTILE.replace("/", "∕")
        self.record("a.jsonl", lines(
            range(1, 6), loss=lambda step: None if step == 3 else step, applied=lambda step: step != 3,
            skip_reason=lambda step: HOSTILE, first_bad_tensor=lambda step: HOSTILE,
            memory=lambda step: {HOSTILE: 5}))
        self.write("a.run.json", {"model": {"model_type": HOSTILE}, "data": HOSTILE, "device": HOSTILE,
                                  "parameters": HOSTILE, "configuration": {
                                      "given": HOSTILE, "origins": {HOSTILE: HOSTILE},
                                      "config": {HOSTILE: 1}}})
        self.ds("view", "a.jsonl", "--output", f"{name}.html")
        found, text = self.drawn(f"{name}.html")
        self.assertEqual(found["loss"]["loss"], (4, 1.0, 5.0))
        self.assertEqual(found["loss"]["marks"], 1)
        self.assertNotIn("<img", text)

    def test_documents_of_other_shapes(self):
        records = {"one": lines([7]), "zero": [{"step": 0}], "text": [{"step": 1, "loss": "x"}],
                   "none": [{"step": 1, "loss": None}, {"step": 2, "loss": None}],
                   "huge": [{"step": 1, "loss": 1e308}, {"step": 2 ** 53, "loss": -1e308}],
                   "same": [{"step": 5, "loss": 0, "grad_norm": 0}, {"step": 5, "loss": 0}],
                   "memory": [{"step": 1, "memory": {"a": -5, "b": 0}}]}
        for name, record in records.items():
            for about in ({}, {"configuration": [], "model": 3, "ranks": "x"},
                          {"configuration": {"config": 5, "origins": [], "warnings": 3}}):
                with self.subTest(name, about=about):
                    self.record(f"{name}.jsonl", record)
                    self.write(f"{name}.run.json", about)
                    self.ds("view", f"{name}.jsonl")
                    self.drawn(f"{name}.html")

    def test_mistakes_of_the_script_are_seen(self):
        self.record("a.jsonl", lines(range(1, 4)))
        text = self.ds("view", "a.jsonl", "--output", "-").text
        self.write("a.html", text.replace("header();", "header(); nothing.here();"))
        self.assertTrue(self.browse("a.html", "--dump-dom")[1])
        self.write("a.html", text.replace("header();", "header(); fetch('https://example.org');"))
        self.assertIn("Content Security Policy", "".join(self.browse("a.html", "--dump-dom")[1]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
