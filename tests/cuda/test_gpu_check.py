#!/usr/bin/env python3
"""scripts/gpu-check on a pack whose programs are stand-ins: the gate, the budget, what it leaves behind."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DS = '''#!/bin/sh
echo "cuDNN at ${DS_CUDNN_LIBRARY:-nowhere}" >&2
cat "$(dirname "$0")/report.json"
'''
GPU = {"index": 0, "name": "GPU of the test", "memory_bytes": 2 ** 36, "compute_capability": "9.0",
       "multiprocessors": 132}


def report(usable=True, cudnn=True):
    libraries = [{"feature": name, "usable": name != "cuDNN" or cudnn, "reason": f"{name} of the test"}
                 for name in ("cuBLASLt", "cuDNN", "NCCL")]
    gpu = {"usable": usable, "reason": "there is none", "devices": [GPU] if usable else []}
    return {"gpu": {**gpu, "libraries": libraries} if usable else gpu}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.pack, self.out = self.folder / "gpu-pack", self.folder / "out"
        for name in ("scripts/gpu-check", "scripts/common.sh", "tests/cuda/run_shards.py"):
            target = self.pack / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        (self.pack / "bin").mkdir()
        self.program("ds", DS)
        self.report(report())
        self.program("gpu_bench", '#!/bin/sh\necho "rows $*" >&2\necho "{\\"rows\\": []}"\n')

    def program(self, name, text):
        path = self.pack / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def report(self, what):
        (self.pack / "bin" / "report.json").write_text(json.dumps(what), encoding="utf-8")

    def command(self, *arguments):
        return [str(self.pack / "scripts" / "gpu-check"), "--out", str(self.out), *arguments]

    def check(self, *arguments, **environment):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=100,
                              env={**os.environ, "PYTHON": sys.executable, **environment})
        return done.returncode, done.stdout + done.stderr

    def read(self, name):
        return (self.out / name).read_text(encoding="utf-8")

    def test_no_gpu_is_told(self):
        self.report(report(usable=False))
        status, said = self.check("A")
        self.assertEqual(status, 3, said)
        self.assertIn("ds report finds no GPU: there is none", said)

    def test_no_cudnn_is_told(self):
        self.report(report(cudnn=False))
        status, said = self.check("A")
        self.assertEqual(status, 3, said)
        self.assertIn("cuDNN is not usable: cuDNN of the test", said)
        self.assertNotIn("== tests", said)

    def test_what_is_measured_is_kept_in_few_files(self):
        status, said = self.check("bench-linear", "bench-rest")
        self.assertEqual(status, 0, said)
        figures = json.loads(self.read("bench-linear-bench-rest-figures.json"))
        self.assertEqual(set(figures), {"linear", "linear-timed", "rest"})
        summary = json.loads(self.read("bench-linear-bench-rest-summary.json"))
        self.assertEqual([row["result"] for row in summary], ["passed", "passed"])
        self.assertIn("--filter linear/ --time-products", self.read("bench-linear-bench-rest.log"))
        files = os.listdir(self.out)
        self.assertLessEqual(len(files), 8)
        self.assertTrue(all(name.startswith("bench-linear-bench-rest") for name in files), files)

    def test_a_failure_is_told(self):
        self.program("gpu_bench", "#!/bin/sh\necho broken >&2\nexit 5\n")
        status, said = self.check("bench-linear")
        self.assertEqual(status, 1)
        self.assertIn("broken", said)
        self.assertIn("failed with status 5", self.read("bench-linear-summary.txt"))

    def test_what_does_not_fit_is_skipped(self):
        status, said = self.check("bench-linear", "--budget", "16")
        self.assertEqual(status, 0, said)
        self.assertIn("of the budget's 16 seconds are left", self.read("bench-linear-summary.txt"))

    def test_a_signal_keeps_what_there_is(self):
        self.program("gpu_bench", '#!/bin/sh\necho "rows $*" >&2\ncase "$*" in *--time*) exec sleep 77;; esac\n'
                                  'echo "{\\"rows\\": []}"\n')
        check = subprocess.Popen(self.command("bench-linear"), stdout=subprocess.DEVNULL,
                                 start_new_session=True)
        log = self.out / "bench-linear.log"
        for _ in range(600):  # until its second program runs
            time.sleep(0.05)
            if log.exists() and "--time-products" in log.read_text(encoding="utf-8"):
                break
        check.send_signal(signal.SIGTERM)
        self.assertEqual(check.wait(30), 143)
        self.assertEqual(json.loads(self.read("bench-linear-figures.json"))["linear"], {"rows": []})
        listed = subprocess.run(["pgrep", "-a", "-s", str(check.pid)], capture_output=True, text=True).stdout
        self.assertEqual([line for line in listed.splitlines() if "<defunct>" not in line], [])

    def test_the_wheels_of_pytorch_name_libraries(self):
        for name in ("cudnn/lib/libcudnn.so.9", "cu13/lib/libcublasLt.so.13", "nccl/lib/libnccl.so.2"):
            path = self.folder / "site" / "nvidia" / name
            path.parent.mkdir(parents=True)
            path.touch()
        site = str(self.folder / "site")
        variables = ("DS_CUDNN_LIBRARY", "DS_CUBLASLT_LIBRARY", "DS_NCCL_LIBRARY")
        status, said = self.check("bench-linear", PYTHONPATH=site, **{name: "" for name in variables})
        self.assertEqual(status, 0, said)
        for variable, name in zip(variables, ("cudnn/lib/libcudnn.so.9", "cu13/lib/libcublasLt.so.13",
                                              "nccl/lib/libnccl.so.2")):
            self.assertIn(f"{variable}={site}/nvidia/{name}", said)
        _, said = self.check("bench-linear", PYTHONPATH=site, DS_CUDNN_LIBRARY="/mine")
        self.assertNotIn("DS_CUDNN_LIBRARY=", said)

    def test_an_archive_is_unpacked(self):
        carried = self.folder / "carried"
        carried.mkdir()
        with tarfile.open(carried / "gpu-pack.tar.xz", "w:xz") as file:
            file.add(self.pack, "gpu-pack")
        done = subprocess.run([str(ROOT / "scripts" / "gpu-check"), "bench-linear", "--pack", str(carried)],
                              capture_output=True, text=True, timeout=100,
                              env={**os.environ, "OUT": str(self.out)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("passed", self.read("bench-linear-summary.txt"))

    def test_wrong_arguments(self):
        for wrong in (["D"], [], ["A", "--budget", "soon"], ["A", "--budget"], ["--pack", str(self.folder), "A"]):
            with self.subTest(wrong):
                status, said = self.check(*wrong)
                self.assertEqual(status, 2, said)
                self.assertIn("gpu-check: ", said)
        status, listed = self.check("--list")
        self.assertEqual(status, 0)
        self.assertIn("A tests", listed.splitlines())


if __name__ == "__main__":
    unittest.main()
