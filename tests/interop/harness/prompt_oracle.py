"""What transformers makes of prompts: `prompt_oracle.py DIRECTORY` reads a question a line and writes its text and ids.

Runs with transformers. The template is the directory's chat_template.jinja.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers.utils import chat_template_utils as jinja


def main() -> None:
    directory = Path(sys.argv[1])
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    template = (directory / "chat_template.jinja").read_text()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    special = {name: config[name] for name in ("bos_token", "eos_token") if config.get(name)}
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "prompt" in question:
                text, chat = question["prompt"], False
            else:
                rendered, _ = jinja.render_jinja_template(
                    [question["messages"]],
                    tools=question.get("tools") or None,
                    chat_template=template,
                    add_generation_prompt=question.get("add_generation_prompt", True),
                    continue_final_message=question.get("continue_final_message", False),
                    **special,
                    **question.get("chat_template_kwargs", {}),
                )
                text, chat = rendered[0], True
            ids = tokenizer.encode(text, add_special_tokens=not chat).ids
            print(json.dumps({"text": text, "ids": ids}))
        except Exception as error:  # noqa: BLE001: what is refused is refused, however
            print(json.dumps({"error": type(error).__name__}))


main()
