"""ds launch: ranks get their places, one failure ends all, and nothing is ever left behind."""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import unittest

from cli_case import PROGRAM, CliCase

SHOW = ("import json, os; print(json.dumps({name: os.environ.get(name) for name in ("
        "'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', "
        "'TORCHELASTIC_RUN_ID', 'DS_MASTER_PORT', 'DS_MASTER_FD', 'DS_JOB_TOKEN', "
        "'DS_JOB_TOKEN_FILE')}))")
PYTHON = [sys.executable, "-S", "-E"]


class LaunchCase(CliCase):
    def setUp(self):
        super().setUp()
        # A duration that no other process on this machine sleeps for marks this test's processes.
        self.mark = f"{random.randrange(1000, 2000)}.{random.randrange(1 << 40):013}"

    def marked(self):
        """Processes whose command line holds the mark, but for `ds launch` itself."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if any(self.mark.encode() in word for word in words) and b"launch" not in words:
                found.append(int(entry))
        return found

    def wait(self, what, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)

    def launch(self, ranks, *command, options=(), status=0):
        return self.ds("launch", "-n", ranks, *options, "--", *command, status=status)

    def shell(self, ranks, script, **more):
        return self.launch(ranks, "sh", "-c", script.replace("MARK", self.mark), **more)

    def begin(self, ranks, script, *options):
        """Starts a job in the background."""
        job = subprocess.Popen([PROGRAM, "launch", "-n", str(ranks), *options, "--", "sh", "-c",
                                script.replace("MARK", self.mark)], cwd=self.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def end():
            job.kill()
            job.communicate()
            self.wait("left behind", lambda: not self.marked())
        self.addCleanup(end)
        return job


class Success(LaunchCase):
    def test_places(self):
        outside = {"DS_MASTER_PORT": "1", "DS_MASTER_FD": "77", "DS_JOB_TOKEN": "x" * 20,
                   "DS_JOB_TOKEN_FILE": "/nowhere"}
        os.environ.update(outside)
        for name in outside:
            self.addCleanup(os.environ.pop, name)
        done = self.launch(3, *PYTHON, "-c", SHOW)
        self.assertEqual(done.error, "")
        places = {}
        for line in done.text.splitlines():
            self.assertRegex(line, r"^\[\d\] \{")
            places[line[1]] = json.loads(line[4:])
        self.assertEqual(sorted(places), ["0", "1", "2"])
        for rank, place in places.items():
            self.assertEqual((place["RANK"], place["LOCAL_RANK"]), (rank, rank))
            self.assertEqual((place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"]), ("3", "3"))
            self.assertEqual(place["MASTER_ADDR"], "127.0.0.1")
            self.assertIsNone(place["DS_JOB_TOKEN_FILE"])
            self.assertRegex(place["DS_JOB_TOKEN"], "^[0-9a-f]{64}$")
            # Only rank 0 has the listener.
            self.assertEqual(place["DS_MASTER_FD"] is None, rank != "0")
            self.assertNotEqual(place["DS_MASTER_FD"], "77")
        for name in ["MASTER_PORT", "TORCHELASTIC_RUN_ID", "DS_MASTER_PORT", "DS_JOB_TOKEN"]:
            self.assertEqual(len({place[name] for place in places.values()}), 1)
        self.assertNotIn(places["0"]["DS_MASTER_PORT"], ["1", places["0"]["MASTER_PORT"]])

    def test_one_rank(self):
        self.assertEqual(self.launch(1, "echo", "alone").text, "[0] alone\n")

    def test_arguments_arrive_as_they_are(self):
        words = ["[1,2]", "--", "-n", "", "a b", "*", "--help"]
        done = self.launch(1, *PYTHON, "-c", "import sys; print(sys.argv[1:])", *words)
        self.assertEqual(done.text, f"[0] {words}\n")

    def test_output_by_lines(self):
        done = self.shell(2, "printf 'a\\nb'; printf 'x\\n\\ny' >&2")
        self.assertEqual(sorted(done.text.splitlines()), ["[0] a", "[0] b", "[1] a", "[1] b"])
        self.assertEqual(sorted(done.error.splitlines()),
                         sorted(f"[{r}] {line}" for r in (0, 1) for line in ("x", "", "y")))

    def test_much_output_is_whole(self):
        done = self.shell(3, "seq 30000")
        for rank in range(3):
            mine = [line[4:] for line in done.text.splitlines() if line.startswith(f"[{rank}] ")]
            self.assertEqual(mine, [str(i) for i in range(1, 30001)])

    def test_long_lines(self):
        done = self.launch(2, *PYTHON, "-c", "print('x' * 300000)")
        self.assertEqual(done.text.count("x"), 600000)
        for line in done.text.splitlines():
            self.assertRegex(line, r"^\[[01]\] x+$")

    def test_rank_logs(self):
        done = self.shell(2, "echo out $RANK; echo err $RANK >&2",
                          options=["--rank-logs", "logs/here"])
        self.assertEqual((done.text, done.error), ("", ""))
        for rank in range(2):
            for kind in ["out", "err"]:
                self.assertEqual((self.folder / f"logs/here/rank-{rank}.{kind}").read_text(),
                                 f"{kind} {rank}\n")

    def test_bind_parts_the_cpus(self):
        cpus = len(os.sched_getaffinity(0))
        show = "import os; print(sorted(os.sched_getaffinity(0)))"
        done = self.launch(2, *PYTHON, "-c", show, options=["--bind"])
        shares = [json.loads(line[4:]) for line in sorted(done.text.splitlines())]
        if cpus == 1:
            self.assertEqual(shares[0], shares[1])
        else:
            self.assertEqual(set(shares[0]) & set(shares[1]), set())
            self.assertEqual(len(shares[0]) + len(shares[1]), cpus)

    def test_input_is_empty(self):
        lines = self.ds("launch", "-n", 2, "--", "wc", "-c", text="abc").text.splitlines()
        self.assertEqual(sorted(lines), ["[0] 0", "[1] 0"])  # ranks end in any order


class Ports(LaunchCase):
    def test_rank_0_can_listen(self):
        listen = ("import os, socket; s = socket.socket(); "
                  "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
                  "s.bind(('', int(os.environ['MASTER_PORT']))); s.listen(); print('listening')")
        self.assertIn("listening", self.launch(1, *PYTHON, "-c", listen).text)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.launch(2, "true", options=["--master-port", port], status=1)
            self.assertRegex(done.error, rf"^ds: error: cannot use --master-port {port}: .*in use")
        done = self.shell(1, "echo $MASTER_PORT", options=["--master-port", port])
        self.assertEqual(done.text, f"[0] {port}\n")

    def test_rank_0_inherits_its_listener_and_nobody_can_be_there_first(self):
        script = """
import os, socket, sys, time
port = int(os.environ["DS_MASTER_PORT"])
if os.environ["RANK"] == "0":
    time.sleep(1)
    listener = socket.socket(fileno=int(os.environ["DS_MASTER_FD"]))
    listener.setblocking(True)
    assert listener.getsockname() == ("127.0.0.1", port)
    print("accepted", listener.accept()[0].recv(3))
else:
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        squatter = socket.socket()
        squatter.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            squatter.bind(("127.0.0.1", port))
            squatter.listen()
            sys.exit("the port was free")
        except OSError as error:
            print(error.strerror)
    socket.create_connection(("127.0.0.1", port)).sendall(b"hi!")
"""
        done = self.launch(2, *PYTHON, "-c", script)
        self.assertIn("[0] accepted b'hi!'", done.text)
        self.assertEqual(done.text.count("[1] Address already in use"), 2)

    def test_a_listener_that_was_closed_on_the_way_is_named(self):
        shut = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; exec \"$@\""
        command = ["train", "--model", "model.json", "--data", "text", "--steps", "1"]
        self.write("text", "some text " * 100)
        self.write("model.json", json.dumps({"model_type": "gpt2", "vocab_size": 256, "n_layer": 1,
                                             "n_positions": 32, "n_embd": 16, "n_head": 2}))
        done = self.ds("launch", "-n", "2", "--grace", "1", "--", "bash", "-c", shut, "sh", PROGRAM,
                       *command, status=1)
        self.assertIn("DS_MASTER_FD says that file", done.error)
        self.assertIn("a program between the launcher and this one has closed it", done.error)

    def test_jobs_at_once_have_ports_of_their_own(self):
        jobs = [self.begin(2, "echo $MASTER_PORT $TORCHELASTIC_RUN_ID; sleep 0.5") for _ in range(8)]
        seen = set()
        for job in jobs:
            text = job.communicate(timeout=60)[0].decode()
            self.assertEqual(job.returncode, 0)
            places = {line[4:] for line in text.splitlines()}
            self.assertEqual(len(places), 1)
            seen |= places
        self.assertEqual(len({place.split()[0] for place in seen}), len(jobs))
        self.assertEqual(len({place.split()[1] for place in seen}), len(jobs))


class Failures(LaunchCase):
    def test_code_of_the_first_that_fails(self):
        began = time.monotonic()
        done = self.shell(4, "[ $RANK = 2 ] || exec sleep MARK; for i in $(seq 20); do "
                             "echo line $i >&2; done; exit 43", status=43)
        self.assertLess(time.monotonic() - began, 20)
        self.assertRegex(done.error, r"ds: error: rank 2 failed first, after [\d.]+ s: exit code 43; "
                                     r"the others were ended\n")
        self.assertTrue(done.error.endswith("  | line 19\n  | line 20\n"), done.error)
        self.assertNotIn("| line 10\n", done.error)
        self.assertEqual(self.marked(), [])

    def test_signal(self):
        done = self.shell(3, "[ $RANK = 1 ] && kill -SEGV $$; exec sleep MARK", status=128 + 11)
        self.assertIn("rank 1 failed first", done.error)
        self.assertIn("signal 11", done.error)
        self.assertEqual(self.marked(), [])

    def test_who_does_not_listen_to_sigterm_is_killed(self):
        began = time.monotonic()
        done = self.shell(2, "[ $RANK = 0 ] && sleep 0.5 && exit 5; trap '' TERM; "
                             "while true; do sleep MARK; done",
                          options=["--grace", "0.5"], status=5)
        self.assertIn("by force", done.error)
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(self.marked(), [])

    def test_siblings_may_clean_up(self):
        # Each hears of the end before the program that it waits for ends by the same signal.
        done = self.shell(8, "[ $RANK = 0 ] && while [ $(ls | grep -c ready) -lt 7 ]; do sleep 0.05; done && exit 5; "
                             "trap 'echo tidy; exit 0' TERM; sleep MARK & touch ready-$RANK; wait",
                          status=5)
        for rank in range(1, 8):
            self.assertIn(f"[{rank}] tidy", done.text)
        self.assertEqual(self.marked(), [])

    # Ranks that tell their failures as the library does, one after the other.
    NOTES = """
import os, pathlib, signal, socket, struct, sys, time
rank = int(os.environ["RANK"])
IO, COMM = -6, -5
def note(code):
    told = socket.socket(fileno=int(os.environ["DS_FAILURE_FD"]))
    told.send(struct.pack("<qii", time.monotonic_ns(), code, 0))
    told.detach()
def reach(point):
    pathlib.Path(point + ".new").write_text(str(os.getpid()))
    os.rename(point + ".new", point)
def wait_for(point):
    while not os.path.exists(point):
        time.sleep(0.02)
"""

    def notes(self, ranks, script, status, grace=30):
        for point in self.folder.glob("point*"):
            point.unlink()
        return self.launch(ranks, *PYTHON, "-c", self.NOTES + script, status=status,
                           options=["--grace", grace]).error

    def test_first_is_whose_error_came_first(self):
        # Rank 2 fails first and takes its time to end; the others fail because of it.
        script = """
if rank == 2:
    signal.signal(signal.SIGTERM, lambda *_: END)
    note(IO)
    print("no space", file=sys.stderr, flush=True)
    reach("point")
    while True:
        time.sleep(60)
wait_for("point")
note(COMM if rank == 0 else IO)
sys.exit(3)
"""
        error = self.notes(3, script.replace("END", "sys.exit(7)"), 7)
        self.assertRegex(error, r"rank 2 failed first, after [\d.]+ s: exit code 7")
        self.assertTrue(error.endswith("  | no space\n"), error)
        error = self.notes(3, script.replace("END", "None"), 3, grace=0.5)
        self.assertRegex(error, "rank 2 failed first, .*: its error came before that of rank [01];")
        self.assertTrue(error.endswith("  | no space\n"), error)

    def test_what_is_about_others_is_not_first(self):
        error = self.notes(2, """
if rank == 0:
    note(COMM)
    reach("point0")
    wait_for("point1")
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
wait_for("point0")
note(IO)
reach("point1")
while True:
    time.sleep(60)
""", 4)
        self.assertIn("rank 1 failed first", error)

    def test_what_a_rank_got_over_is_not_first(self):
        error = self.notes(2, """
if rank == 1:
    note(IO)
    reach("point")
    time.sleep(600)
wait_for("point")
time.sleep(6)
note(IO)
sys.exit(3)
""", 3)
        self.assertIn("rank 0 failed first", error)

    def test_a_stopped_rank_is_named(self):
        error = self.notes(3, """
if rank == 1:
    reach("point")
    os.kill(os.getpid(), signal.SIGSTOP)
if rank > 0:
    time.sleep(600)
wait_for("point")
stat = pathlib.Path(f"/proc/{pathlib.Path('point').read_text()}/stat")
while stat.read_text().rsplit(") ", 1)[1][0] != "T":
    time.sleep(0.02)
note(COMM)
sys.exit(3)
""", 3, grace=0.5)
        self.assertIn("did not run, stopped by a signal or a debugger: rank 1; rank 0 failed first",
                      error)

    def test_grandchildren_end_too(self):
        self.shell(2, "setsid sleep MARK & sleep MARK & [ $RANK = 0 ] && sleep 0.3 && exit 9; wait",
                   status=9)
        self.assertEqual(self.marked(), [])

    def test_what_a_good_run_leaves_in_the_background(self):
        self.shell(2, "setsid sleep MARK & exit 0")
        self.assertEqual(self.marked(), [])

    def test_rank_logs_show_their_end(self):
        done = self.shell(2, "echo reason $RANK >&2; [ $RANK = 1 ] && exit 3; exec sleep MARK",
                          options=["--rank-logs", "logs"], status=3)
        self.assertIn("logs/rank-1.err", done.error)
        self.assertIn("  | reason 1\n", done.error)
        self.assertNotIn("reason 0", done.error)

    def test_timeout(self):
        done = self.shell(2, "exec sleep MARK", options=["--timeout", "0.5"], status=124)
        self.assertIn("not done after 0.5 s", done.error)
        self.assertIn("ranks 0, 1", done.error)
        self.assertEqual(self.marked(), [])

    def test_commands_that_do_not_run(self):
        self.assertIn("cannot run 'no-such-program'",
                      self.launch(3, "no-such-program", status=127).error)
        self.write("data", "no program")
        self.assertIn("cannot run './data'", self.launch(2, "./data", status=126).error)
        self.write("file", "in the way")
        self.assertIn("file", self.launch(1, "true", options=["--rank-logs", "file"],
                                          status=1).error)

    def test_reader_that_goes_away(self):
        job = self.begin(2, "sleep MARK & while echo y; do sleep 0.01; done")
        job.stdout.readline()
        job.stdout.close()
        self.assertEqual(job.wait(timeout=30), 1)
        self.assertIn(b"reader has gone", job.stderr.read())
        self.assertEqual(self.marked(), [])


class Signals(LaunchCase):
    def started(self, ranks, script, *options):
        job = self.begin(ranks, script, *options)
        self.wait("ranks did not start", lambda: len(self.marked()) >= ranks)
        return job

    def test_passed_on(self):
        for number in [signal.SIGTERM, signal.SIGINT]:
            with self.subTest(number=number):
                job = self.started(2, "exec sleep MARK")
                job.send_signal(number)
                error = job.communicate(timeout=30)[1].decode()
                self.assertEqual(job.returncode, 128 + number)
                self.assertNotIn("failed", error)
                self.assertEqual(self.marked(), [])

    def test_ranks_take_their_time(self):
        # The first that is done does not take the others with it.
        job = self.started(2, "trap 'sleep $RANK; echo saved; exit 143' TERM; sleep MARK & wait")
        time.sleep(0.3)
        job.send_signal(signal.SIGTERM)
        text = job.communicate(timeout=30)[0].decode()
        self.assertEqual(job.returncode, 143)
        self.assertEqual(text.count("saved"), 2)

    def test_second_signal_kills(self):
        job = self.started(2, "trap '' TERM; while true; do sleep MARK; done")
        job.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertIsNone(job.poll())
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=30)
        self.assertEqual(job.returncode, 143)
        self.assertEqual(self.marked(), [])

    def test_grace_holds_for_a_signal_from_outside(self):
        job = self.started(2, "trap '' TERM; while true; do sleep MARK; done", "--grace", "0.5")
        job.send_signal(signal.SIGTERM)
        error = job.communicate(timeout=30)[1].decode()
        self.assertEqual(job.returncode, 143)
        self.assertIn("0.5 s (--grace)", error)
        self.assertEqual(self.marked(), [])

    def test_nothing_is_left_when_launch_is_killed(self):
        for stalled in [False, True]:  # nobody reads what the ranks print
            with self.subTest(stalled=stalled):
                job = self.started(3, "trap '' TERM; setsid sleep MARK & sleep MARK & " +
                                   ("while true; do seq 10000; done" if stalled else "wait"))
                if stalled:
                    time.sleep(0.5)
                job.kill()
                self.wait("left behind", lambda: not self.marked(), 10)

    def test_nothing_is_left_when_the_process_below_is_killed(self):
        job = self.started(2, "setsid sleep MARK & sleep MARK & wait")
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as file:
            below = int(file.read().split()[0])
        os.kill(below, signal.SIGKILL)
        error = job.communicate(timeout=30)[1].decode()
        self.assertEqual(job.returncode, 1)
        self.assertIn("signal 9", error)
        self.assertEqual(self.marked(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
