from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_mp import bundle as bundles
from lightning_mp.bundle import Bundle, require_free, seal, writing
from lightning_mp.errors import ArtifactError, BundleError
from lightning_mp.manifest import Manifest, RawInput
from lightning_mp.schema import Feature, FeatureSchema

PRICE = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16",
                missing="mean", missing_value=3.5)  # fmt: skip
MANIFEST = Manifest(
    schema=FeatureSchema(features=(PRICE,)),
    inputs=(RawInput(name="price", datatype="FP64"),),
    precision={"policy": "fp32", "initializers": {"w": "FLOAT"}},
)


def write(folder: Path, *, overwrite: bool = False, content: bytes = b"weights") -> Bundle:
    with writing(folder, overwrite=overwrite) as temporary:
        (temporary / "model.onnx").write_bytes(content)
        (temporary / "model.onnx.data").write_bytes(os.urandom(100))
        seal(temporary, MANIFEST)
    return Bundle.open(folder)


def test_what_was_sealed_is_read_back(tmp_path):
    bundle = write(tmp_path / "b")
    assert replace(bundle.manifest, files={}) == MANIFEST
    assert sorted(bundle.manifest.files) == ["model.onnx", "model.onnx.data"]
    assert bundle.model == tmp_path / "b" / "model.onnx"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_manifests_go_round_json():
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "names no format"),
        ("{}", "names no format"),
        (json.dumps({"format": 2}), "is of format 2, this package reads up to 1"),
        (json.dumps({"format": 1}), "lacks a field"),
        (json.dumps({**json.loads(MANIFEST.to_json()), "colour": "red"}), "holds an unknown one: .*colour"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused(text, words):
    with pytest.raises(BundleError, match=words):
        Manifest.from_json(text)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_every_flipped_bit_and_every_cut_is_found(tmp_path, name):
    write(tmp_path / "b")
    path = tmp_path / "b" / name
    whole = path.read_bytes()
    for bit in range(0, len(whole) * 8, 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(BundleError, match="does not match its digest"):
            Bundle.open(tmp_path / "b")
    path.write_bytes(whole[:-1])
    with pytest.raises(BundleError, match=f"has {len(whole) - 1} bytes, its manifest says {len(whole)}"):
        Bundle.open(tmp_path / "b", verify=False)
    path.unlink()
    with pytest.raises(BundleError, match=rf"{name}` is missing \(expected {len(whole)} bytes\)"):
        Bundle.open(tmp_path / "b")


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "sub/file", "tables/../../x", "tables/sub/file", "..", "tables/.."]
)
def test_a_manifest_that_leaves_its_folder_is_refused(tmp_path, name):
    write(tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    entry = {name: {"size": 1, "sha256": "0" * 64}}
    path.write_text(replace(Manifest.from_json(path.read_bytes()), files=entry).sealed_json())
    with pytest.raises(BundleError, match="leaves the folder"):
        Bundle.open(tmp_path / "b")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    path = write(tmp_path / "b").path / "manifest.json"
    entry = {name: {"size": 1, "sha256": "0" * 64}}
    path.write_text(replace(Manifest.from_json(path.read_bytes()), files=entry).sealed_json())
    with pytest.raises(BundleError, match=r"which cannot be looked up|is missing"):
        Bundle.open(tmp_path / "b")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", b"[" * 100_000, b'{"format": ' + b"1" * 5000 + b"}", b"", b'{"a": NaN}']
)
def test_a_manifest_that_is_not_json_is_refused(tmp_path, content):
    path = write(tmp_path / "b").path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"`manifest\.json` is not JSON"):
        Bundle.open(tmp_path / "b")


SIZED = {"size": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("files", None, r"`manifest\.files` cannot be null"),
        ("files", [], r"`manifest\.files` cannot be \[\]"),
        ("files", 3, r"`manifest\.files` cannot be 3"),
        ("files", {"a": None}, r"`manifest\.files\['a'\]` cannot be null"),
        ("files", {"a": {"size": 1}}, r"`files\['a'\]` needs a `size` and a `sha256`"),
        ("files", {"a": {**SIZED, "size": -1}}, "needs a `size` and a `sha256`"),
        ("files", {"a": {**SIZED, "size": True}}, "needs a `size` and a `sha256`"),
        ("files", {"a": {**SIZED, "sha256": None}}, "needs a `size` and a `sha256`"),
        ("precision", "fp32", r"`manifest\.precision` cannot be \"fp32\""),
        ("precision", {"settings": []}, r"`precision\.settings` cannot be \[\]"),
        ("precision", {"initializers": {"w": 1}}, r"`precision\.initializers\['w'\]` cannot be 1"),
        ("model", ["a"], r"`manifest\.model` cannot be"),
        ("model", {"module": 1}, r"`manifest\.model\['module'\]` cannot be 1"),
        ("task", 1, r"`manifest\.task` cannot be 1"),
        ("versions", "1", r"`manifest\.versions` cannot be"),
        ("versions", {"torch": None}, r"`manifest\.versions\['torch'\]` cannot be null"),
        ("tensors", 1, r"`manifest\.tensors` cannot be 1"),
        ("tensors", ["ids"], r"`manifest\.tensors\[0\]` cannot be \"ids\""),
        ("tensors", [{"name": "ids", "datatype": "INT64", "shape": "3"}], r"tensors\[0\]\.shape` cannot be \"3\""),
        ("inputs", {}, r"`manifest\.inputs` cannot be \{\}"),
        ("inputs", [{"name": 1, "datatype": "FP64"}], r"`manifest\.inputs\[0\]\.name` cannot be 1"),
        ("inputs", [{"name": "a", "datatype": "FP8"}], r"`manifest\.inputs\[0\]\.datatype` cannot be \"FP8\""),
        ("inputs", [{"name": "a"}], "lacks a field"),
        ("inputs", [{"name": "a", "datatype": "FP64", "mode": 1.5}], r"`manifest\.inputs\[0\]\.mode` cannot be 1\.5"),
        ("outputs", "logit", r"`manifest\.outputs` cannot be \"logit\""),
        ("outputs", [1], r"`manifest\.outputs\[0\]` cannot be 1"),
        ("schema", None, r"`manifest\.schema` cannot be null"),
        ("schema", {"features": [1], "version": 1}, r"`manifest\.schema\.features\[0\]` cannot be 1"),
        ("schema", {"features": [{}], "version": 1}, "has kind None"),
        ("schema", {"version": 1}, "holds no list of `features`"),
        ("format", True, "names no format"),
    ],
)
def test_a_manifest_with_a_field_of_another_type_is_refused(field, value, words):
    record = json.loads(MANIFEST.to_json())
    for text in (json.dumps({**record, field: value}), json.dumps({**record, field: value}).encode()):
        with pytest.raises(BundleError, match=words):
            Manifest.from_json(text)


@pytest.mark.parametrize("inner", ["1e999", "[" * 900 + "]" * 900])
def test_numbers_and_nestings_beyond_python_are_refused(tmp_path, inner):
    path = write(tmp_path / "b").path / "manifest.json"
    path.write_text(path.read_text().replace('"policy": "fp32"', f'"policy": {inner}'))
    with pytest.raises(BundleError):
        Bundle.open(tmp_path / "b")


def test_every_flipped_bit_of_the_manifest_is_found(tmp_path):
    path = write(tmp_path / "b").path / "manifest.json"
    whole = path.read_bytes()
    for bit in range(0, len(whole) * 8, 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(BundleError):
            Bundle.open(tmp_path / "b")
    path.write_bytes(whole.replace(b'"required": false', b'"required": true'))
    with pytest.raises(BundleError, match="does not match its own digest: it was altered"):
        Bundle.open(tmp_path / "b")
    path.write_text(MANIFEST.to_json())
    with pytest.raises(BundleError, match="has no `manifest_sha256`: it was altered"):
        Bundle.open(tmp_path / "b")


def test_a_link_to_the_folder_is_followed(tmp_path):
    for name in ("v3", "v4"):
        write(tmp_path / name, content=name.encode())
    (tmp_path / "current").symlink_to("v3")
    opened = Bundle.open(tmp_path / "current")
    assert opened.model.read_bytes() == b"v3"
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("v4")
    opened.verify()
    assert opened.model.read_bytes() == b"v3"
    assert Bundle.open(tmp_path / "current").model.read_bytes() == b"v4"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(BundleError, match="is not a folder"):
        Bundle.open(tmp_path / "round")


@pytest.mark.parametrize("name", ["model.onnx.data", "manifest.json"])
def test_a_symbolic_link_is_refused(tmp_path, name):
    write(tmp_path / "b")
    data = tmp_path / "b" / name
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="is a symbolic link"):
        Bundle.open(tmp_path / "b")


def test_a_hard_link_is_refused(tmp_path):
    """Altered under its other name, the file would change after it was checked."""
    folder = write(tmp_path / "b").path
    (tmp_path / "elsewhere").hardlink_to(folder / "model.onnx")
    with pytest.raises(BundleError, match=r"model\.onnx` is a hard link"):
        Bundle.open(folder)
    (tmp_path / "elsewhere").unlink()
    Bundle.open(folder)


def test_tables_lie_one_folder_below_and_are_verified(tmp_path):
    with writing(tmp_path / "b") as folder:
        (folder / "model.onnx").write_bytes(b"model")
        (folder / "tables").mkdir()
        (folder / "tables" / "user.npz").write_bytes(b"latest features")
        seal(folder, MANIFEST)
    opened = Bundle.open(tmp_path / "b")
    assert set(opened.manifest.files) == {"model.onnx", "tables/user.npz"}
    (tmp_path / "b" / "tables" / "user.npz").write_bytes(b"altered features")
    with pytest.raises(BundleError, match=r"user\.npz` has 16 bytes, its manifest says 15"):
        Bundle.open(tmp_path / "b")
    (tmp_path / "b" / "tables").rename(tmp_path / "moved")
    (tmp_path / "b" / "tables").symlink_to(tmp_path / "moved")
    with pytest.raises(BundleError, match="is a symbolic link"):
        Bundle.open(tmp_path / "b")


def test_a_folder_without_manifest_never_appears(tmp_path):
    with pytest.raises(BundleError, match=r"without a `manifest\.json`"), writing(tmp_path / "b") as folder:
        (folder / "model.onnx").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_the_way_leaves_the_old_bundle(tmp_path):
    before = write(tmp_path / "b", content=b"old").manifest.files

    def interrupted() -> None:
        with writing(tmp_path / "b", overwrite=True) as folder:
            (folder / "model.onnx").write_bytes(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert Bundle.open(tmp_path / "b").manifest.files == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]
    assert write(tmp_path / "b", overwrite=True, content=b"new").model.read_bytes() == b"new"


@pytest.mark.parametrize("step", ["model", "seal", "exchange"])
def test_a_kill_leaves_the_old_bundle_whole_and_the_next_writer_clears_up(tmp_path, step):
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from lightning_mp import artifacts
from lightning_mp.bundle import seal, writing
from lightning_mp.manifest import Manifest
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if {step!r} == "exchange":
    artifacts._exchange = die
with writing({str(tmp_path / "b")!r}, overwrite=True) as folder:
    (folder / "model.onnx").write_bytes(b"new")
    if {step!r} == "model": die()
    seal(folder, Manifest.from_json(sys.argv[1]))
    if {step!r} == "seal": die()
"""
    write(tmp_path / "b", content=b"old")
    run = subprocess.run([sys.executable, "-c", code, MANIFEST.to_json()], check=False)
    assert run.returncode == -signal.SIGKILL
    assert Bundle.open(tmp_path / "b").model.read_bytes() == b"old"
    assert write(tmp_path / "b", overwrite=True, content=b"newer").model.read_bytes() == b"newer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b"]


def test_only_a_bundle_or_nothing_is_replaced(tmp_path):
    require_free(tmp_path / "new" / "deep")
    (tmp_path / "empty").mkdir()
    require_free(tmp_path / "empty")
    assert write(tmp_path / "empty").path == tmp_path / "empty"
    with pytest.raises(ArtifactError, match="is there already: a bundle"):
        require_free(tmp_path / "empty")
    require_free(tmp_path / "empty", overwrite=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    with pytest.raises(ArtifactError, match="is there already: a folder with other files"):
        require_free(tmp_path / "notes", overwrite=True)
    with pytest.raises(ArtifactError, match="is a file, a bundle is a folder"):
        require_free(tmp_path / "notes" / "a.txt", overwrite=True)
    with pytest.raises(ArtifactError, match="cannot be written: no permission in"):
        require_free(tmp_path / "notes" / "a.txt" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_known_beforehand(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactError, match="no permission"):
        require_free(tmp_path / "b")


def test_the_room_is_light():
    assert not hasattr(bundles, "np")
    assert not hasattr(bundles, "onnx")


def test_overwriting_through_a_link_replaces_the_bundle_and_leaves_nothing_else(tmp_path):
    write(tmp_path / "v1", content=b"old")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "current"
    link.symlink_to(tmp_path / "v1")
    write(link, overwrite=True, content=b"new")
    assert link.is_symlink()
    assert (tmp_path / "v1" / "model.onnx").read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["links", "v1"]
    assert [entry.name for entry in link.parent.iterdir()] == ["current"]
