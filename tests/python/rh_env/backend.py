"""Builds this distribution without any other: tests install it where there is no network."""

import base64
import hashlib
import io
import pathlib
import zipfile

NAME, VERSION, NEEDS = "rh_env", "0.3.1", "verifiers==0.4.0"
HERE = pathlib.Path(__file__).parent


def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = f"{NAME}-{VERSION}.dist-info"
    readme = (HERE / "README.md").read_text()
    head = f"Metadata-Version: 2.1\nName: rh-env\nVersion: {VERSION}\nSummary: Small environments of verifiers, to test against\n"
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sorted(HERE.glob("rh_*/*.py"))}
    files[f"{info}/METADATA"] = f"{head}Requires-Dist: {NEEDS}\nDescription-Content-Type: text/markdown\n\n{readme}".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: rh-env\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = io.StringIO()
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.write(f"{name},sha256={digest},{len(content)}\n")
    record.write(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = record.getvalue().encode()
    wheel = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel
