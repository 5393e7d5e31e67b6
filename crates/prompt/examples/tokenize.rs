//! Prompts on standard input, one JSON object a line; their text and ids on standard output. What
//! `tests/interop` compares with transformers: `tokenize DIRECTORY [UNIX_SECONDS]`.

#![allow(clippy::disallowed_methods, reason = "a tool")]

use std::error::Error;
use std::io::{BufRead as _, Write as _};

use kvplane_prompt::{Json, Model, ModelSpec, PromptInput};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("tokenize DIRECTORY [UNIX_SECONDS]")?;
    let unix_seconds = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let model = Model::load(&ModelSpec::from_directory("m", directory))?;
    eprintln!("{}", model.tokenizer().implementation().as_str());
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let question = Json::parse(line?.as_bytes())?;
        let made = input(&question).and_then(|input| {
            let text = model.render(&input, unix_seconds)?;
            Ok((text, model.ids(&input, unix_seconds)?))
        });
        let answer = match made {
            Ok((text, ids)) => serde_json::json!({"text": text, "ids": ids}),
            Err(error) => serde_json::json!({"error": error.to_string()}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn input(question: &Json) -> Result<PromptInput, kvplane_prompt::PromptError> {
    if let Some(text) = question.get("prompt").and_then(Json::as_str) {
        return Ok(PromptInput::text(text));
    }
    let field = |name: &str| question.get(name).cloned();
    let messages = field("messages").unwrap_or_default();
    let mut input = PromptInput::chat(messages, field("tools"), field("chat_template_kwargs"))?;
    if let PromptInput::Chat(chat) = &mut input {
        chat.add_generation_prompt = question.get("add_generation_prompt") != Some(&Json::Bool(false));
        chat.continue_final_message = question.get("continue_final_message") == Some(&Json::Bool(true));
    }
    Ok(input)
}
