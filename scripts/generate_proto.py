"""Generates gagent_grpc/pb from protos/: message types, typed stubs, and the twin of the session's frames.

Runs inside an environment that holds the pinned generators (`make proto` makes it). The twin, `gagent.internal.v1`, is
the public `bus_service.proto` with `BusMessage` replaced by `bytes`: an embedded message and bytes have the same
encoding, so the bus reads and writes the public frames without touching what is inside a message. `BusMessage` itself has
a twin there, too, whose bodies are `bytes`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PUBLIC = "gagent.v1"
TWIN = "gagent.internal.v1"
TWIN_FILE = "gagent/internal/v1/bus_frames.proto"
OPAQUE = f".{PUBLIC}.BusMessage"
HEAD = "BusMessageHead"
BODIES = {OPAQUE, f".{PUBLIC}.AclMessage", f".{PUBLIC}.AcpMessage"}
# Many deliveries were accepted in the same moment, which then needs to be written but once.
OPAQUE_FIELDS = {("Delivery", "accepted_at")}
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def protoc(*args: str) -> None:
    # The plugins are installed beside the interpreter that runs this.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *args], check=True, cwd=ROOT, env={**os.environ, "PATH": path}
    )


def make_twin(files: descriptor_pb2.FileDescriptorSet) -> None:
    """Append the twin of bus_service.proto to ``files``."""
    public = next(file for file in files.file if file.name == "gagent/v1/bus_service.proto")
    twin = descriptor_pb2.FileDescriptorProto()
    twin.CopyFrom(public)
    twin.name = TWIN_FILE
    twin.package = TWIN
    twin.ClearField("service")
    twin.ClearField("options")
    twin.ClearField("source_code_info")
    kept = [message for message in public.message_type if f".{PUBLIC}.{message.name}" != OPAQUE]
    del twin.message_type[:]
    twin.message_type.extend(kept)
    # Only what is inside a body needs this one.
    kept_imports = [name for name in public.dependency if name != "gagent/v1/acl.proto"]
    del twin.dependency[:]
    twin.dependency.extend(kept_imports)
    own = {f".{PUBLIC}.{item.name}" for item in [*kept, *public.enum_type]}
    head = twin.message_type.add()
    head.CopyFrom(next(message for message in public.message_type if f".{PUBLIC}.{message.name}" == OPAQUE))
    head.name = HEAD
    for message in twin.message_type:
        for field in message.field:
            if field.type_name in BODIES or (message.name, field.name) in OPAQUE_FIELDS:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
            elif field.type_name in own:
                field.type_name = field.type_name.replace(f".{PUBLIC}.", f".{TWIN}.", 1)
            elif field.type_name.startswith(f"{OPAQUE}."):
                field.type_name = field.type_name.replace(OPAQUE, f".{TWIN}.{HEAD}", 1)
    files.file.append(twin)


def use_relative_imports(folder: Path) -> None:
    """Make the generated imports relative, so that the package works under its own root."""
    for path in folder.rglob("*_pb2*.py*"):
        here = path.parent.relative_to(folder).parts

        def relative(match: re.Match[str], here: tuple[str, ...] = here) -> str:
            target = tuple(match[2].split("."))
            common = next(
                (i for i, (a, b) in enumerate(zip(here, target, strict=False)) if a != b), min(len(here), len(target))
            )
            dots = "." * (len(here) - common + 1)
            return f"{match[1]}from {dots}{'.'.join(target[common:])} import"

        text = re.sub(r"^(\s*)from (gagent(?:\.\w+)+) import", relative, path.read_text(), flags=re.MULTILINE)
        path.write_text(text)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch, "image.binpb")
        sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
        protoc(
            f"-I{PROTOS}",
            f"-I{WELL_KNOWN}",
            f"--descriptor_set_out={image}",
            "--include_imports",
            "--include_source_info",
            *sources,
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
        make_twin(files)
        image.write_bytes(files.SerializeToString(deterministic=True))
        made = Path(scratch, "pb")
        made.mkdir()
        services = [name for name in sources if name.endswith("_service.proto")]
        protoc(f"--descriptor_set_in={image}", f"--python_out={made}", f"--mypy_out=quiet:{made}", *sources, TWIN_FILE)
        protoc(f"--descriptor_set_in={image}", f"--grpc_python_out={made}", f"--mypy_grpc_out=quiet:{made}", *services)
        for folder in [made, *(path for path in made.rglob("*") if path.is_dir())]:
            (folder / "__init__.py").write_text('"""Generated by `make proto`; not edited by hand."""\n')
        use_relative_imports(made)
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(made, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "gagent_grpc" / "pb")
