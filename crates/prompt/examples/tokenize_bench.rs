//! How long text takes to become ids: `tokenize_bench DIRECTORY`, in release.
//!
//! Beside the time is the CPU time of all threads, which other work on the machine does not change.

use std::error::Error;
use std::time::Duration;

use kvplane_prompt::{Chat, Json, ModelSpec, PromptInput, Prompts};

/// Text that does not repeat within a run: words of a small vocabulary, drawn by a generator.
struct Words(u64);

impl Words {
    fn text(&mut self, bytes: usize) -> String {
        const WORDS: [&str; 16] = [
            "the", "engine", "caches", "a", "prefix", "of", "every", "prompt", "and", "returns", "tokens",
            "quickly", "when", "asked", "again", "2026",
        ];
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(WORDS[(self.0 >> 60) as usize]);
            if self.0 & 0x700_0000_0000 == 0 {
                text.push_str(&format!("{:x}", self.0 >> 48));
            }
            text.push(' ');
        }
        text
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("tokenize_bench DIRECTORY")?;
    let begun = kvplane_runtime::now();
    let prompts =
        Prompts::load(vec![ModelSpec::from_directory("m", directory)]).map_err(|(_, error)| error)?;
    println!("load: {:?}", begun.elapsed());
    let mut words = Words(1);
    for (bytes, rounds) in [(4 << 10, 400), (40 << 10, 100), (400 << 10, 40)] {
        let inputs: Vec<_> = (0..rounds).map(|_| PromptInput::text(words.text(bytes))).collect();
        report(
            &format!("text of {} KB", bytes >> 10),
            inputs.iter().map(|input| timed(&prompts, input)).collect(),
        );
    }
    let message = |role: &str, text: String| {
        Json::Object(vec![("role".to_owned(), Json::from(role)), ("content".to_owned(), Json::String(text))])
    };
    let mut chat = Chat::default();
    for _ in 0..100 {
        chat.messages.push(message("user", words.text(2 << 10)));
        chat.messages.push(message("assistant", words.text(2 << 10)));
    }
    let mut turns = Vec::new();
    for _ in 0..40 {
        chat.messages.push(message("user", words.text(400)));
        let input = PromptInput::Chat(chat.clone());
        turns.push(timed(&prompts, &input));
        chat.messages.push(message("assistant", words.text(400)));
    }
    report("first turn of a long conversation", turns.drain(..1).collect());
    report("every further turn", turns);
    Ok(())
}

/// Time, CPU time and tokens.
type Took = (Duration, Duration, usize);

fn timed(prompts: &Prompts, input: &PromptInput) -> Took {
    let (begun, used) = (kvplane_runtime::now(), cpu());
    let ids = prompts.tokenize("m", input).map_or(0, |tokenized| tokenized.ids.len());
    (begun.elapsed(), cpu().saturating_sub(used), ids)
}

/// What all threads have computed so far.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn report(what: &str, mut took: Vec<Took>) {
    let tokens = took[took.len() / 2].2;
    let at = |took: &[Took], part: usize| took[(took.len() * part / 100).min(took.len() - 1)];
    took.sort();
    let [p50, p99] = [50, 99].map(|part| at(&took, part).0);
    took.sort_by_key(|(_, cpu, _)| *cpu);
    let [cpu50, cpu99] = [50, 99].map(|part| at(&took, part).1);
    println!("{what}: {tokens} tokens, p50 {p50:?}, p99 {p99:?}; CPU p50 {cpu50:?}, p99 {cpu99:?}");
}
