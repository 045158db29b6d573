"""A disk with faults: a FUSE file system in this machine's kernel that passes everything on to a folder, but what it is told to hold up or to
refuse. A process whose call is held is in state D, as with a dead disk: not even SIGKILL ends it. Stopping the server (stop, go) is an NFS
server that hangs. Needs root and /dev/fuse.

Run as a program (fuse_disk.py MOUNT_POINT FOLDER FAULTS) it is the server; it ends with its standard input, and the kernel then fails
every call that waits.
"""
import ctypes
import errno
import fnmatch
import json
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

LOOK_S = 0.01
LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


def why_not():
    """Why there can be no such disk here; empty if there can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return "" if os.path.exists("/dev/fuse") else "this kernel has no /dev/fuse"


class Disk:
    """The disk at `mount`, with its files in `folder`. A fault is {"op": PATTERN, "name": PATTERN, "fault": "hold" or "EIO" or ...}: the
    operations are those of Server.OPERATIONS, and the name is the file's, without folders. {"times": N} ends an error after N of them."""

    def __init__(self, mount, folder):
        self.mount, self.folder, self.faults_file = Path(mount), folder, f"{folder}.faults"
        for path in (mount, folder):
            os.makedirs(path, exist_ok=True)
        self.set()
        self.server = subprocess.Popen([sys.executable, __file__, mount, folder, self.faults_file], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        if self.server.stdout.readline() != "ready\n":
            raise OSError(f"no FUSE disk at {mount}")

    def set(self, *faults):
        """From now on these faults and no others: what is held goes on."""
        Path(f"{self.faults_file}.new").write_text(json.dumps(faults))
        os.rename(f"{self.faults_file}.new", self.faults_file)

    def stop(self):
        self.server.send_signal(signal.SIGSTOP)

    def go(self):
        self.server.send_signal(signal.SIGCONT)

    def held(self, op):
        """How many operations of this name are held now."""
        try:
            return json.loads(Path(f"{self.faults_file}.held").read_text()).get(op, 0)
        except (OSError, ValueError):
            return 0

    def close(self):
        self.go()
        self.server.stdin.close()
        self.server.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


HEADER = struct.Struct("<IIQQIIIHH")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ROOT = 1


class Server:
    OPERATIONS = {1: "lookup", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename",
                  14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync", 25: "flush", 26: "init", 27: "opendir",
                  28: "readdir", 29: "releasedir", 30: "fsyncdir", 35: "create", 45: "rename2"}
    SILENT = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET have no answer. Nothing that is held can be interrupted.

    def __init__(self, mount, folder, faults_file):
        self.faults_file = faults_file
        self.paths = {ROOT: folder}
        self.nodes = {folder: ROOT}
        self.last_node = ROOT
        self.lock = threading.Lock()
        self.held = {}
        self.taken = {}  # How often each fault with `times` has struck.
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        if LIBC.mount(b"fuse_disk", mount.encode(), b"fuse", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), mount)

    def run(self):
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([self.device, sys.stdin], [], [])
            if sys.stdin in readable:
                return
            try:
                request = os.read(self.device, (1 << 20) + 8192)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            header = HEADER.unpack_from(request)
            opcode, unique, node = header[1:4]
            body = request[HEADER.size:]
            if opcode in self.SILENT:
                continue
            op = self.OPERATIONS.get(opcode)
            if op is None:
                self.answer(unique, -errno.ENOSYS)
            elif self.fault(op, node, body) == "hold":
                threading.Thread(target=self.serve_later, args=(unique, op, node, body), daemon=True).start()
            else:
                self.serve(unique, op, node, body)

    def serve_later(self, unique, op, node, body):
        self.count_held(op, 1)
        while self.fault(op, node, body) == "hold":
            time.sleep(LOOK_S)
        self.count_held(op, -1)
        self.serve(unique, op, node, body)

    def count_held(self, op, change):
        with self.lock:
            self.held[op] = self.held.get(op, 0) + change
            Path(f"{self.faults_file}.held.new").write_text(json.dumps(self.held))
            os.rename(f"{self.faults_file}.held.new", f"{self.faults_file}.held")

    def serve(self, unique, op, node, body):
        fault = self.fault(op, node, body, take=True)
        try:
            if fault:
                raise OSError(getattr(errno, fault), fault)
            with self.lock:
                result = getattr(self, op)(node, body)
            self.answer(unique, 0, result)
        except OSError as error:
            self.answer(unique, -(error.errno or errno.EIO))

    def answer(self, unique, error, data=b""):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
        except OSError:
            pass  # Whoever asked is gone.

    def fault(self, op, node, body, take=False):
        with open(self.faults_file, encoding="ascii") as file:
            faults = json.load(file)
        if not faults or op in ("init", "release", "releasedir"):
            return ""
        name = os.path.basename(self.paths.get(node, ""))
        for skip, ops in ((0, ("unlink", "rmdir", "symlink", "lookup")), (8, ("mkdir", "rename")), (16, ("create", "rename2"))):
            if op in ops:
                name = body[skip:].split(b"\0")[0].decode()
        for fault in faults:
            if not fnmatch.fnmatch(op, fault["op"]) or not fnmatch.fnmatch(name, fault["name"]):
                continue
            key = json.dumps(fault)
            if self.taken.get(key, 0) >= fault.get("times", sys.maxsize):
                continue
            if take:
                self.taken[key] = self.taken.get(key, 0) + 1
            return fault["fault"]
        return ""

    # ---- what the operations do; each returns the answer's bytes ----

    def attr(self, path):
        at = os.lstat(path)
        return ATTR.pack(at.st_ino, at.st_size, at.st_blocks, int(at.st_atime), int(at.st_mtime), int(at.st_ctime), at.st_atime_ns % 10**9,
                         at.st_mtime_ns % 10**9, at.st_ctime_ns % 10**9, at.st_mode, at.st_nlink, at.st_uid, at.st_gid, 0, 4096, 0)

    def entry(self, path):
        attr = self.attr(path)
        if path not in self.nodes:
            self.last_node += 1
            self.nodes[path] = self.last_node
            self.paths[self.last_node] = path
        return struct.pack("<QQQQII", self.nodes[path], 0, 0, 0, 0, 0) + attr

    def child(self, node, name):
        return os.path.join(self.paths[node], name.decode())

    def forget(self, path):
        self.nodes.pop(path, None)

    def init(self, _node, body):
        readahead = struct.unpack_from("<III", body)[2]
        return struct.pack("<IIIIHHIIHHII24x", 7, 31, readahead, 0, 64, 48, 1 << 20, 1, 256, 0, 0, 0)

    def lookup(self, node, body):
        return self.entry(self.child(node, body.split(b"\0")[0]))

    def getattr(self, node, _body):
        return struct.pack("<QII", 0, 0, 0) + self.attr(self.paths[node])

    def setattr(self, node, body):
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 1:
            os.chmod(self.paths[node], stat.S_IMODE(struct.unpack_from("<I", body, 68)[0]))
        if valid & 8:
            os.truncate(self.paths[node], size)
        return self.getattr(node, body)

    def readlink(self, node, _body):
        return os.readlink(self.paths[node]).encode()

    def symlink(self, node, body):
        name, target = body.split(b"\0")[:2]
        path = self.child(node, name)
        os.symlink(target.decode(), path)
        return self.entry(path)

    def mkdir(self, node, body):
        path = self.child(node, body[8:].split(b"\0")[0])
        os.mkdir(path, struct.unpack_from("<I", body)[0])
        return self.entry(path)

    def unlink(self, node, body):
        path = self.child(node, body.split(b"\0")[0])
        os.unlink(path)
        self.forget(path)
        return b""

    def rmdir(self, node, body):
        path = self.child(node, body.split(b"\0")[0])
        os.rmdir(path)
        self.forget(path)
        return b""

    def rename(self, node, body, skip=8):
        new_folder = struct.unpack_from("<Q", body)[0]
        old_name, new_name = body[skip:].split(b"\0")[:2]
        old, new = self.child(node, old_name), self.child(new_folder, new_name)
        os.rename(old, new)
        self.forget(new)
        for path in [path for path in self.nodes if path == old or path.startswith(old + "/")]:
            moved = self.nodes.pop(path)
            self.nodes[new + path[len(old):]] = moved
            self.paths[moved] = new + path[len(old):]
        return b""

    def rename2(self, node, body):
        return self.rename(node, body, 16)

    def open(self, node, body):
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_APPEND)
        return struct.pack("<QII", os.open(self.paths[node], flags), 0, 0)

    def create(self, node, body):
        flags, mode = struct.unpack_from("<II", body)
        path = self.child(node, body[16:].split(b"\0")[0])
        fd = os.open(path, (flags & ~(os.O_DIRECT | os.O_APPEND)) | os.O_CREAT, mode)
        return self.entry(path) + struct.pack("<QII", fd, 0, 0)

    def read(self, _node, body):
        fd, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(fd, size, offset)

    def write(self, _node, body):
        fd, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(fd, body[40:40 + size], offset), 0)

    def fsync(self, _node, body):
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def flush(self, _node, _body):
        return b""

    def release(self, _node, body):
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def statfs(self, node, _body):
        of = os.statvfs(self.paths[node])
        return struct.pack("<QQQQQIIII24x", of.f_blocks, of.f_bfree, of.f_bavail, of.f_files, of.f_ffree, of.f_bsize, 255, of.f_frsize, 0)

    def opendir(self, _node, _body):
        return struct.pack("<QII", 0, 0, 0)

    def releasedir(self, _node, _body):
        return b""

    def fsyncdir(self, node, _body):
        fd = os.open(self.paths[node], os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return b""

    def readdir(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        listed = b""
        for index, name in enumerate(sorted(os.listdir(self.paths[node]))):
            if index < offset:
                continue
            raw = name.encode()
            entry = struct.pack("<QQII", 1, index + 1, len(raw), 0) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Server(*sys.argv[1:4]).run()
    LIBC.umount2(sys.argv[1].encode(), MNT_DETACH)
