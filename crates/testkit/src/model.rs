//! A small model for tests: bytes, some merges, special tokens and a template with everything in it.

#![allow(clippy::expect_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// A template that shows what it gets: roles, tools, calls, and where the answer begins.
pub const TEMPLATE: &str = "\
{%- if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}\
{%- for message in messages %}\
{%- if message.role == 'forbidden' %}{{ raise_exception('this role is not allowed') }}{% endif %}\
{%- if message.role == 'echo' %}{{ raise_exception('got ' + message.content) }}{% endif %}\
{{- '<|im_start|>' + message.role + '\n' + message.content }}\
{%- for call in message.tool_calls or [] %}\n{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}\
{{- '<|im_end|>\n' }}\
{%- endfor %}\
{%- if add_generation_prompt %}<|im_start|>assistant\n{% if thinking is defined %}<think>{{ thinking }}{% endif %}{% endif %}";

const MERGES: [(&str, &str); 24] = [
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("o", "n"),
    ("r", "e"),
    ("Ġ", "a"),
    ("in", "g"),
    ("e", "n"),
    ("a", "t"),
    ("o", "r"),
    ("Ġ", "w"),
    ("l", "l"),
    ("u", "s"),
    ("us", "er"),
    ("Ġ", "Ġ"),
    ("ĠĠ", "ĠĠ"),
    ("s", "t"),
    ("an", "d"),
    ("Ġ", "and"),
    ("Ã", "©"),
    ("0", "0"),
];
const SPECIAL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>"];

/// Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` into a new directory below the
/// system's temporary one.
pub fn model_directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("kvplane-prompt-{}-{name}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    write_model(&directory, TEMPLATE);
    directory
}

/// Writes a model's files with a template of the test's own.
pub fn write_model(directory: &Path, template: &str) {
    let write = |file: &str, text: String| fs::write(directory.join(file), text).expect("a file");
    write("tokenizer.json", tokenizer().to_string());
    write("tokenizer_config.json", json!({"bos_token": null, "eos_token": "<|im_end|>"}).to_string());
    write("chat_template.jinja", template.to_owned());
}

fn tokenizer() -> Value {
    let mut vocabulary: Vec<String> = byte_alphabet().into_iter().map(String::from).collect();
    vocabulary.extend(MERGES.map(|(left, right)| format!("{left}{right}")));
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(at, token)| {
            json!({"id": vocabulary.len() + at, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let ids: Map<String, Value> =
        vocabulary.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids,
            "merges": MERGES.map(|(left, right)| json!([left, right]))},
    })
}

/// GPT-2's characters for bytes.
fn byte_alphabet() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let character = |byte: u32| {
        let code = if printable(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or(' ')
    };
    (0..256).map(character).collect()
}
