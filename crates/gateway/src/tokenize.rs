//! A prompt's ids, within a deadline.

use std::sync::Arc;

use bytes::Bytes;
use kvplane_inference::{self as inference, NoTokens, Plane, Prompt, Tokens};
use kvplane_prompt::PromptInput;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::api::Api;
use crate::options::Options;
use crate::refusal::Refusal;

/// Bodies that are read on the thread that serves the request: well below a millisecond.
const AT_ONCE: usize = 16 << 10;

/// A prompt as ids, and whether they may be sent in its place.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) tokens: Option<Tokens>,
    pub(crate) without: Option<NoTokens>,
    /// Nothing but its text decides about the ids.
    pub(crate) plain: bool,
}

impl Read {
    pub(crate) fn without(why: NoTokens) -> Self {
        Self { without: Some(why), ..Self::default() }
    }

    /// For the decision.
    pub(crate) fn known(&self) -> Result<&Tokens, NoTokens> {
        self.tokens.as_ref().ok_or_else(|| self.without.unwrap_or(NoTokens::NoPrompt))
    }
}

/// Long prompts take turns: more at once than there are processors would only make each of them slower.
#[derive(Debug)]
pub(crate) struct Tokenizers(Arc<Semaphore>);

impl Default for Tokenizers {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self(Arc::new(Semaphore::new(threads)))
    }
}

impl Tokenizers {
    /// The ids of a body's prompt, for a model without its adapter.
    pub(crate) async fn read(
        &self,
        plane: &Arc<dyn Plane>,
        options: &Options,
        api: Api,
        model: &str,
        body: &Bytes,
    ) -> Result<Read, Refusal> {
        let api = api.prompt();
        if api == inference::Api::Other {
            return Ok(Read::without(NoTokens::OtherApi));
        }
        if !plane.tokenizes(model) && api == inference::Api::Chat {
            return Ok(Read::without(NoTokens::NoTokenizer));
        }
        if body.len() <= AT_ONCE {
            return read_now(plane, api, model, body);
        }
        let deadline = Instant::now() + options.tokenize_within(body.len());
        let (plane, model, body) = (plane.clone(), model.to_owned(), body.clone());
        let turns = self.0.clone();
        let work = async move {
            let turn = turns.acquire_owned().await;
            let work = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                read_now(&plane, api, &model, &body)
            });
            work.await.unwrap_or_else(|_| Ok(Read::without(NoTokens::NotRendered)))
        };
        timeout_at(deadline, work).await.unwrap_or_else(|_| Ok(Read::without(NoTokens::TooSlow)))
    }
}

fn read_now(plane: &Arc<dyn Plane>, api: inference::Api, model: &str, body: &[u8]) -> Result<Read, Refusal> {
    let asked = inference::read(api, body).map_err(|error| Refusal::invalid(error.to_string()))?;
    let is_text = matches!(asked.prompt, Some(Prompt::Text(PromptInput::Text(_))));
    let plain = asked.plain || is_text;
    let tokens = match asked.prompt {
        None => Err(NoTokens::OtherApi),
        Some(Prompt::Ids(ids)) => {
            return Ok(Read {
                tokens: Some(Tokens {
                    model: model.to_owned(),
                    adapter: None,
                    ids,
                    proven: true,
                    ..Tokens::default()
                }),
                without: None,
                // They are ids already.
                plain: false,
            });
        }
        Some(Prompt::Text(prompt)) => plane.tokenize(model, prompt),
    };
    Ok(match tokens {
        Ok(tokens) => Read { tokens: Some(tokens), without: None, plain },
        Err(why) => Read::without(why),
    })
}
