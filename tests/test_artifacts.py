"""Files and folders under a kill at every step, a full disk, no permission, a flipped bit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lightning_mp.artifacts import check_file, digest, new_folder, replacing, sweep
from lightning_mp.errors import ArtifactError

WRITERS = """
    import ctypes, errno, os, signal, sys
    from pathlib import Path
    from lightning_mp import artifacts
    from lightning_mp.artifacts import new_folder, replacing

    OLD, NEW = b"old " * 5_000, b"new! " * 5_000

    def write_file(place):
        with replacing(place / "scores") as file:
            for start in range(0, len(NEW), 10_000):
                file.write(NEW[start:start + 10_000])

    def write_folder(place):
        with new_folder(place / "bundle", overwrite=True) as folder:
            (folder / "a").write_bytes(NEW)
            (folder / "inner").mkdir()
            (folder / "inner" / "b").write_bytes(NEW)

    def read_file(place):
        return [(place / "scores").read_bytes()] if (place / "scores").exists() else None

    def read_folder(place):
        top = place / "bundle"
        return [(top / "a").read_bytes(), (top / "inner" / "b").read_bytes()] if top.exists() else None

    def fill_old(place):
        (place / "scores").write_bytes(OLD)
        (place / "bundle" / "inner").mkdir(parents=True)
        for name in ("a", "inner/b"):
            (place / "bundle" / name).write_bytes(OLD)

    def killed_at(step, write, place):
        # A child that is killed with signal 9 before the given line of artifacts or pathlib; false once it ends.
        child = os.fork()
        if child == 0:
            seen = 0
            def trace(frame, event, argument):
                nonlocal seen
                if not frame.f_code.co_filename.endswith(("artifacts.py", "pathlib.py", "shutil.py", "<string>")):
                    return None
                seen += event == "line"
                if seen > step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return trace
            sys.settrace(trace)
            write(place)
            sys.settrace(None)
            os._exit(0)
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
"""


def run(code: str, *arguments: object) -> str:
    script = textwrap.dedent(WRITERS) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("before", ["nothing", "old"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_whole(tmp_path, what, before):
    kills = run(
        f"""
        import shutil
        place, step, kills = Path(sys.argv[1]), 0, 0
        while True:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            if {before!r} == "old":
                fill_old(place)
            killed = killed_at(step, write_{what}, place)
            found = read_{what}(place)
            old = None if {before!r} == "nothing" else [OLD] * len(found)
            assert found in (old, [NEW] * len(found or ())), (step, found)
            if not killed:
                assert found and found[0] == NEW
                break
            write_{what}(place)
            assert read_{what}(place)[0] == NEW
            assert not list(place.glob(".lightning_mp-tmp-*")), step
            step, kills = step + 1, kills + 1
        print(kills)
        """,
        tmp_path / "place",
    )
    assert int(kills) > 40


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_limit_on_file_size_leaves_the_old_and_says_so(tmp_path, what):
    run(
        f"""
        import resource
        place = Path(sys.argv[1])
        fill_old(place)
        resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))
        try:
            write_{what}(place)
        except artifacts.ArtifactError as error:
            assert os.strerror(errno.EFBIG) in error.problem and "df -h" in error.hint, error
        else:
            sys.exit("no error")
        assert set(read_{what}(place)) == {{OLD}}
        assert sorted(p.name for p in place.iterdir()) == ["bundle", "scores"]
        """,
        tmp_path,
    )


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_full_disk_leaves_the_old_and_says_so(tmp_path, what):
    mounted = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=56k none "{tmp_path}" && exec "$0" "$@"']
    try:
        subprocess.run([*mounted, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system of its own needs root on Linux")
    code = f"""
        place = Path(sys.argv[1])
        (place / "scores").write_bytes(OLD)
        (place / "bundle" / "inner").mkdir(parents=True)
        (place / "bundle" / "a").write_bytes(b"old")
        (place / "bundle" / "inner" / "b").write_bytes(b"old")
        try:
            write_{what}(place)
            write_{what}(place)
        except artifacts.ArtifactError as error:
            assert os.strerror(errno.ENOSPC) in error.problem and "df -h" in error.hint, error
        else:
            sys.exit("no error")
        found = read_{what}(place)
        assert found in ([OLD], [b"old", b"old"], [NEW] * len(found)), found
        assert sorted(p.name for p in place.iterdir()) == ["bundle", "scores"]
        """
    script = textwrap.dedent(WRITERS) + textwrap.dedent(code)
    done = subprocess.run(
        [*mounted, sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    run(
        """
        import tempfile
        with tempfile.TemporaryDirectory() as place:
            locked = Path(place) / "locked"
            locked.mkdir()
            locked.chmod(0o555)
            Path(place).chmod(0o755)
            child = os.fork()
            if child == 0:
                if os.getuid() == 0:
                    os.setgroups([]); os.setgid(65534); os.setuid(65534)
                for write in (write_file, write_folder):
                    try:
                        write(locked)
                    except artifacts.ArtifactError as error:
                        if not (str(locked) in error.problem and error.hint == "give a folder you may write to"):
                            os._exit(1)
                    else:
                        os._exit(2)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            locked.chmod(0o755)
            assert status == 0, status
        """
    )


def test_an_error_inside_the_block_leaves_the_old_untouched(tmp_path):
    target = tmp_path / "scores.json"
    target.write_bytes(b"old")

    def half_a_file() -> None:
        with replacing(target) as file:
            file.write(b"half of the ne")
            raise KeyError("x")

    def half_a_folder() -> None:
        with new_folder(tmp_path / "bundle") as folder:
            (folder / "a").write_bytes(b"half")
            raise KeyError("x")

    with pytest.raises(KeyError):
        half_a_file()
    with pytest.raises(KeyError):
        half_a_folder()
    assert target.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scores.json"]


def test_missing_parents_are_made_and_relative_paths_work(tmp_path):
    with replacing("deep/er/scores.json") as file:
        file.write(b"{}")
    with new_folder("deep/bundle") as folder:
        (folder / "a").write_bytes(b"1")
    assert (tmp_path / "deep/er/scores.json").read_bytes() == b"{}"
    assert (tmp_path / "deep/bundle/a").read_bytes() == b"1"


def test_what_is_in_the_way_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(ArtifactError, match=r"folder` is a folder, a file was to be written"), replacing("folder"):
        pass
    with pytest.raises(ArtifactError, match=r"folder` is there already"), new_folder("folder"):
        pass
    with pytest.raises(ArtifactError, match=r"file` is a file, a folder was"), new_folder("file", overwrite=True):
        pass
    with pytest.raises(ArtifactError, match="a part of the path is a file"), replacing("file/scores.json"):
        pass
    assert (tmp_path / "file").read_bytes() == b"1"


@pytest.mark.parametrize("link", [False, True])
def test_a_device_or_a_pipe_is_not_replaced(tmp_path, link):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    target = tmp_path / "link" if link else pipe
    if link:
        target.symlink_to(pipe)
    with pytest.raises(ArtifactError, match=f"`{target}` is a device or a pipe"), replacing(target):
        pass
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == sorted({pipe, target})
    with pytest.raises(ArtifactError, match="`/dev/no-such-device` is a device"), replacing("/dev/no-such-device"):
        pass


def test_overwriting_exchanges_the_folders_and_keeps_nothing_of_the_old(tmp_path):
    for content in ("old", "new"):
        with new_folder(tmp_path / "bundle", overwrite=True) as folder:
            (folder / f"only_{content}").write_text(content)
            if content == "new":  # the old one stands, whole, until the block ends
                assert (tmp_path / "bundle" / "only_old").read_text() == "old"
    assert [p.name for p in (tmp_path / "bundle").iterdir()] == ["only_new"]
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_reader_never_sees_a_part_while_writers_take_turns(tmp_path):
    target = tmp_path / "LATEST"
    versions = [bytes([65 + i]) * 50_000 for i in range(3)]

    def write(version: bytes) -> None:
        for _ in range(15):
            with replacing(target) as file:
                file.write(version)

    write(versions[0])
    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, version) for version in versions]
        while not all(job.done() for job in writing):
            assert target.read_bytes() in versions
    for job in writing:
        job.result()


def test_sweep_removes_what_dead_writers_left_and_nothing_else(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    gone, alive = int(dead.stdout), os.getpid()
    for pid in (gone, alive):
        (tmp_path / f".lightning_mp-tmp-{pid}-00000000").write_bytes(b"1")
        (tmp_path / f".lightning_mp-tmp-{pid}-11111111").mkdir()
    (tmp_path / "kept.json").write_bytes(b"1")
    assert sorted(p.name for p in sweep(tmp_path)) == [
        f".lightning_mp-tmp-{gone}-{end}" for end in ("00000000", "11111111")
    ]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_that_is_missing_cut_or_altered_is_refused(tmp_path):
    file = tmp_path / "model.onnx"
    content = bytearray(os.urandom(4_096))
    file.write_bytes(content)
    size, right = len(content), digest(file)
    check_file(file, size=size, sha256=right)

    content[2_000] ^= 1
    file.write_bytes(content)
    check_file(file, size=size)
    with pytest.raises(ArtifactError, match="its bytes were altered"):
        check_file(file, size=size, sha256=right)
    file.write_bytes(content[:4_000])
    with pytest.raises(ArtifactError, match="has 4,000 bytes, its manifest says 4,096"):
        check_file(file, size=size, sha256=right)
    file.unlink()
    with pytest.raises(ArtifactError, match=r"is missing \(expected 4,096 bytes\)"):
        check_file(file, size=size)


def test_digest_is_sha256_and_an_absent_file_is_named(tmp_path):
    (tmp_path / "empty").touch()
    assert digest(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(ArtifactError) as caught:
        digest(Path("absent"))
    assert "absent" in caught.value.problem
    assert os.strerror(errno.ENOENT) in caught.value.problem
