"""`tandem doctor`, `tandem top` and `tandem bench daemon` from outside, beside a real tandemd and without one.

SPDX-License-Identifier: Apache-2.0

usage: test_tool_daemon.py BUILD_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits

BUILD = None
PATIENCE = 60
STATES = {"yes", "no", "note"}
TABLE = "What each rung needs"


def tool(*args, **more):
    more.setdefault("env", {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"})
    return limits.run([BUILD / "tandem", *args], capture_output=True, text=True, seconds=PATIENCE, **more)


def text_of(fd, until, seconds=PATIENCE):
    """What a terminal shows until `until` is in it, or the program ends."""
    text = b""
    end = time.monotonic() + seconds
    while until not in text and time.monotonic() < end:
        if not select.select([fd], [], [], 0.2)[0]:
            continue
        try:
            more = os.read(fd, 65536)
        except OSError:
            break
        if not more:
            break
        text += more
    return text


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, *args, rows=24, columns=80):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(BUILD / "tandem", ["tandem", *args])
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            text_of(self.fd, b"never", 0.1)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("it does not end")


class Daemon:
    def __init__(self, folder, config=""):
        self.socket = str(folder / "socket")
        self.config = str(folder / "config")
        pathlib.Path(self.config).write_text("backend = cpu\n" + config)
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [BUILD / "tandemd", "--socket", self.socket, "--config", self.config], stderr=self.log)
        end = time.monotonic() + PATIENCE
        while "computes on" not in pathlib.Path(self.log.name).read_text():
            assert time.monotonic() < end and self.process.poll() is None, pathlib.Path(self.log.name).read_text()
            time.sleep(0.01)

    def stop(self):
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        self.log.close()
        return code


class WithDaemon(unittest.TestCase):
    config = ""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.daemon = Daemon(pathlib.Path(self.folder.name), self.config.format(folder=self.folder.name))
        self.soak = None

    def tearDown(self):
        if self.soak:
            self.soak.kill()
            self.soak.wait()
        self.assertEqual(self.daemon.stop(), 0)
        self.folder.cleanup()


def findings(report):
    return {(f["section"].split(",")[0].split(":")[0], f["name"]): f for f in report["findings"]}


class Listener:
    """Somebody else's: says this to whoever connects and waits; None: closes."""

    def __init__(self, path, says, kind=socket.SOCK_SEQPACKET):
        self.says, self.held, self.listener = says, [], socket.socket(socket.AF_UNIX, kind)
        self.listener.bind(str(path))
        self.listener.listen()

    def __enter__(self):
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            if self.says:
                peer.send(self.says)
            if self.says is None:
                peer.close()
            else:
                self.held.append(peer)

    def __exit__(self, *args):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for peer in self.held:
            peer.close()


class Doctor(unittest.TestCase):
    def report(self, *args, code=0, **more):
        done = tool("doctor", "--json", *args, **more)
        self.assertEqual((done.returncode, done.stderr), (code, ""))
        return json.loads(done.stdout)

    def check_schema(self, report):
        self.assertEqual(set(report), {"version", "works", "rung", "rung_reason", "findings"})
        self.assertIsInstance(report["works"], bool)
        self.assertGreater(len(report["findings"]), 5)
        for f in report["findings"]:
            extra = {"p50_us", "p99_us"} & set(f)
            self.assertEqual(set(f) - extra - {"needed_by"}, {"section", "name", "status", "text", "advice"})
            self.assertIn(f["status"], STATES)
            self.assertTrue(f["name"])
            self.assertTrue(f["status"] != "no" or f["advice"], f)
            if extra:
                self.assertEqual((len(extra), f["status"]), (2, "yes"))
                self.assertGreaterEqual(f["p99_us"], f["p50_us"])
                self.assertGreater(f["p50_us"], 0)

    def test_paths_that_are_no_text(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(os.fsencode(folder), b"c")
            with open(config, "wb") as file:
                file.write(b"model_dir = /no\xffwhere\n")
            self.check_schema(self.report("--socket", b"/no\xfewhere", "--config", config))
            os.unlink(config)
            os.mkfifo(config)
            findings = self.report("--socket", "/nowhere", "--config", config)["findings"]
            self.assertIn("no regular file", findings[-1]["text"])

    def test_every_no_says_how(self):
        report = self.report("--socket", "/nowhere/socket")
        self.check_schema(report)
        self.assertTrue(report["works"])
        info = json.loads(tool("info", "--json").stdout)
        self.assertEqual(report["version"], info["version"])
        got = findings(report)
        daemon = got["tandemd", "reachable"]
        self.assertEqual(daemon["status"], "no")
        self.assertIn("/nowhere/socket", daemon["text"])
        self.assertIn("tandemd --socket /nowhere/socket", daemon["advice"])
        if not info["cuda"]["device"]:
            self.assertIn("nvidia-smi", got[TABLE, "CUDA driver"]["advice"])
            self.assertIn("no CUDA here", got[TABLE, "CUDA driver"]["text"])
            self.assertIn("CUDA driver", got["Rungs", "timeline"]["text"])
            self.assertIn("no CUDA", report["rung_reason"])
        # Each extension that the session's library asks for is there by name.
        for device in info["vulkan"]["devices"][:1]:
            names = {f["name"] for f in report["findings"]}
            self.assertLessEqual({r["name"] for r in device["requirements"]}, names)
            needed = {f["name"] for f in report["findings"] if "needed_by" in f}
            optional = {f["name"] for f in report["findings"] if f["section"].startswith("Optional: ")}
            self.assertTrue(needed and optional)
            for r in device["requirements"]:
                self.assertNotEqual(r["name"] in needed, r["name"] in optional, r)
            self.assertTrue(any("p50_us" in f for f in report["findings"]))

    def test_without_vulkan(self):
        env = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
        env.update(VK_DRIVER_FILES="/nowhere.json", VK_ICD_FILENAMES="/nowhere.json")
        report = self.report(env=env)
        self.check_schema(report)
        self.assertTrue(report["works"])
        got = findings(report)
        self.assertEqual(got["Drivers", "Vulkan"]["status"], "no")
        self.assertIn("mesa-vulkan-drivers", got["Drivers", "Vulkan"]["advice"])
        self.assertIn("XDG_RUNTIME_DIR", got["tandemd", "reachable"]["text"])

    def test_text_fits_and_is_plain_where_it_is_no_terminal(self):
        done = tool("doctor", "--socket", "/nowhere/socket")
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("\033", done.stdout)
        for line in done.stdout.splitlines():
            self.assertLessEqual(len(line), 80, line)
        self.assertIn("Tandem works here", done.stdout)

    def test_the_table_is_what_decides(self):
        """A rung that works has all that the table says it needs, one that does not lacks something there."""
        report = self.report("--socket", "/nowhere/socket")
        rows = [f for f in report["findings"] if "needed_by" in f]
        self.assertGreater(len(rows), 8)
        for rung in ("inline", "timeline", "host", "copy", "cpu"):
            worked = [f["status"] for f in report["findings"] if f["section"].startswith("Rungs") and f["name"] == rung]
            for device in ("CUDA", "CPU"):
                column = [f for f in rows if {"device": device, "rung": rung} in f["needed_by"]]
                if column and worked == ["no"]:
                    self.assertIn("no", [f["status"] for f in column], (rung, device))
                if column and report["rung"] == rung and (device == "CPU") == (rung == "cpu"):
                    self.assertNotIn("no", [f["status"] for f in column], rung)
        text = tool("doctor", "--socket", "/nowhere/socket").stdout
        table = text[text.index("What each rung needs"):].split("\n\n")[0].split("\n")
        names = table[2].split()
        self.assertEqual(names, ["inline", "timeline", "host", "copy", "cpu", "copy"])
        ends = [match.end() for match in re.finditer(r"\S+", table[2])]
        for line in table[3:]:
            cells = re.findall(r"(?<= )(?:yes|no|\.|\?)(?= |$)", line[35:])
            if len(cells) == len(names):  # its cells end where the names above them do
                self.assertEqual([match.end() for match in re.finditer(r"\S+", line) if match.start() >= 35], ends, line)
        self.assertIn("all that it needs", table[-1])

    def reachable(self, path, **more):
        found = findings(self.report("--socket", str(path), **more))["tandemd", "reachable"]
        self.assertEqual(found["status"], "no")
        return found

    def test_who_listens_is_told(self):
        """Nobody, somebody else (who closes, speaks another language, is silent), and somebody who may not be asked."""
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            path = pathlib.Path(folder) / "socket"
            self.assertIn("nobody listens at", self.reachable(path)["text"])
            path.write_text("a file")
            self.assertIn("is no socket", self.reachable(path)["text"])
            path.unlink()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
                left.bind(str(path))
            found = self.reachable(path)
            self.assertIn("nobody listens at", found["text"])
            self.assertIn("start it", found["advice"])
            path.unlink()
            for says, words in ((None, "closes without a word"), (b"SSH-2.0-OpenSSH_9.2 and more", "who is no tandemd"),
                                (b"", "says nothing")):
                with Listener(path, says):
                    text = self.reachable(path)["text"]
                    self.assertIn("somebody listens at", text)
                    self.assertIn("who is no tandemd", text)
                    self.assertIn(words, text)
                path.unlink()
            with Listener(path, b"", socket.SOCK_STREAM):
                self.assertIn("another kind of socket", self.reachable(path)["text"])
            path.unlink()
            with Listener(path, None):
                os.chmod(path, 0)
                found = self.reachable(path, **({"user": 65534} if os.geteuid() == 0 else {}))
                self.assertIn("permission denied", found["text"])
                self.assertIn("allow_uid", found["advice"])

    def test_colour_on_a_terminal(self):
        terminal = Terminal("doctor", "--socket", "/nowhere/socket")
        text = text_of(terminal.fd, b"works here")
        self.assertIn(b"\033[31m", text)
        self.assertEqual(terminal.end(), 0)

    def test_manners(self):
        self.assertEqual(tool("doctor", "--bogus").returncode, 2)
        self.assertIn("usage: tandem doctor", tool("doctor", "--help").stdout)
        got = findings(self.report("--config", "/nowhere.conf", "--socket", "/nowhere/socket"))
        self.assertEqual(got["Model directories", "configuration"]["status"], "no")


class Descriptors(unittest.TestCase):
    def test_what_is_printed_goes_into_no_file(self):
        """Without descriptors 0 to 2 the first files that are opened must not get their numbers."""
        with tempfile.TemporaryDirectory() as folder:
            written = []
            for closed in (False, True):
                path = pathlib.Path(folder) / f"{closed}.safetensors"
                done = subprocess.run([BUILD / "tandem", "sample-qkv", "--out", path, "--n", "64"], timeout=PATIENCE * limits.WALL,
                                      stdout=None if closed else subprocess.DEVNULL,
                                      preexec_fn=(lambda: os.closerange(0, 3)) if closed else None)
                self.assertEqual(done.returncode, 0)
                written.append(path.read_bytes())
            self.assertEqual(written[0], written[1])


class DoctorBesideDaemon(WithDaemon):
    config = "model_dir = {folder}\nmodel_dir = {folder}/missing\n"

    def test_what_it_sees(self):
        (pathlib.Path(self.folder.name) / "a.safetensors").write_text("")
        done = tool("doctor", "--json", "--socket", self.daemon.socket, "--config", self.daemon.config)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        got = findings(report)
        self.assertEqual(got["tandemd", "reachable"]["status"], "yes")
        self.assertIn("tandemd " + report["version"], got["tandemd", "reachable"]["text"])
        self.assertEqual(got["tandemd", "clients now"]["text"], "0")
        self.assertEqual(got["tandemd", "loads models"]["status"], "yes")
        self.assertEqual(got["Model directories", self.folder.name]["text"], "1 model file in it")
        missing = got["Model directories", self.folder.name + "/missing"]
        self.assertEqual(missing["status"], "no")
        self.assertTrue(missing["advice"])


class Top(WithDaemon):
    def look(self, *args):
        done = tool("top", "--socket", self.daemon.socket, "--interval", "0.3", *args)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def begin_clients(self):
        """Clients of the soak's kind, at the daemon of this test."""
        self.soak = subprocess.Popen(
            [BUILD / "soak", "--socket", self.daemon.socket, "--clients", "2"], stdout=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while True:
            got = json.loads(self.look("--once", "--json"))
            if len(got["clients"]) == 2 and all(c["jobs_per_s"] > 0 for c in got["clients"]):
                return got
            self.assertLess(time.monotonic(), end)

    def test_nobody(self):
        got = json.loads(self.look("--once", "--json"))
        self.assertEqual(set(got), {"socket", "daemon", "backend", "rung", "device", "workers_replaced", "interval_s",
                                    "clients"})
        self.assertEqual(got["clients"], [])
        self.assertIn("no clients", self.look("--once"))

    def test_clients(self):
        got = self.begin_clients()
        self.assertEqual((got["backend"], got["workers_replaced"]), ("cpu", 0))
        self.assertGreater(got["interval_s"], 0.2)
        for c in got["clients"]:
            self.assertEqual(
                set(c),
                {"session", "pid", "uid", "name", "class", "jobs_per_s", "compute_ms_per_s", "wait_ms", "missed_per_s",
                 "done", "missed", "cancelled", "failed", "queued", "running", "mem_bytes", "model_bytes", "connected_s"})
            self.assertEqual((c["name"], c["class"], c["uid"], c["failed"]), ("soak", "frame", os.geteuid(), 0))
            self.assertGreater(c["compute_ms_per_s"], 0)
            self.assertGreater(c["mem_bytes"], 0)
        text = self.look("--once")
        lines = text.splitlines()
        self.assertEqual(sum(line.startswith("soak") for line in lines), 2)
        self.assertTrue(all(len(line) <= 80 for line in lines[2:]), text)
        self.assertNotIn("\033", text)

    def test_a_terminal(self):
        terminal = Terminal("top", "--socket", self.daemon.socket, "--interval", "0.2", rows=12, columns=60)
        text = text_of(terminal.fd, b"no clients")
        self.assertIn(b"\033[?1049h", text)
        self.assertIn(b"no clients", text)
        self.daemon.process.kill()
        self.daemon.stop()
        self.assertIn(b"does not answer", text_of(terminal.fd, b"does not answer"))
        self.daemon = Daemon(pathlib.Path(self.folder.name))
        self.assertIn(b"no clients", text_of(terminal.fd, b"no clients"))
        os.write(terminal.fd, b"q")
        text = text_of(terminal.fd, b"\033[?1049l")
        self.assertIn(b"\033[?25h\033[?1049l", text)
        self.assertEqual(terminal.end(), 0)

    def test_a_small_terminal(self):
        terminal = Terminal("top", "--socket", self.daemon.socket, "--interval", "0.2", rows=10, columns=30)
        text = text_of(terminal.fd, b"no clients").decode()
        for line in re.sub(r"\033\[[0-9;?]*[a-zA-Z]", "", text).splitlines():
            self.assertLessEqual(len(line), 30, line)
        os.write(terminal.fd, b"q")
        self.assertEqual(terminal.end(), 0)

    def test_interrupt_leaves_the_terminal_as_it_was(self):
        terminal = Terminal("top", "--socket", self.daemon.socket)
        text_of(terminal.fd, b"no clients")
        os.kill(terminal.pid, signal.SIGINT)
        self.assertIn(b"\033[?1049l", text_of(terminal.fd, b"\033[?1049l"))
        self.assertEqual(terminal.end(), 0)

    def test_manners(self):
        for args in (["--interval", "0"], ["--interval", "x"], ["--what"]):
            self.assertEqual(tool("top", *args).returncode, 2, args)
        done = tool("top", "--once", "--socket", "/nowhere/socket")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("/nowhere/socket", done.stderr)
        self.assertEqual(tool("top", "--once").returncode, 2)


class Bench(unittest.TestCase):
    def test_quick(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "daemon.json"
            done = tool("bench", "daemon", "--quick", "--json", str(path))
            if "libvulkan" in done.stderr or "no Vulkan" in done.stderr:
                self.skipTest(done.stderr)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            got = json.loads(path.read_text())
        self.assertEqual(got["bench"], "daemon")
        for payload in got["handover"]:
            self.assertEqual([lane["lane"] for lane in payload["lanes"]], ["in this process", "through tandemd"])
            for lane in payload["lanes"]:
                self.assertEqual(lane["why"], "")
                self.assertGreater(lane["round_trip_us"]["median"], 0)
                self.assertGreater(lane["in_flight_us"]["median"], 0)
        clients = got["clients"]["together"]
        self.assertEqual(len(clients), 8)
        self.assertAlmostEqual(sum(c["share"] for c in clients), 1, 2)
        self.assertGreater(got["clients"]["frame_wait_us"]["count"], 0)
        self.assertGreater(got["clients"]["frame_wait_quiet_us"]["count"], 0)
        self.assertEqual(len(got["targets"]), 7)

    def test_manners(self):
        done = tool("bench", "daemon", "--socket", "/nowhere/socket")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertEqual(tool("bench", "daemon", "--rounds", "0").returncode, 2)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1))
    if not (BUILD / "tandem").exists():
        sys.exit(77)
    unittest.main()
