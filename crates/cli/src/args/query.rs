//! The arguments of `kvplane query`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args as ClapArgs;
use serde::Serialize;

use super::{KeyArgs, TableOutput};

#[derive(Debug, ClapArgs)]
pub(crate) struct QueryArgs {
    /// HTTP address of kvplane [default: <http://127.0.0.1:8090>, or `KVPLANE_SERVER`]. With --tenant, the gRPC
    /// address of a kvplane or an inference-cache server [default: 127.0.0.1:50090]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
    /// A file with token ids: a JSON list, or numbers separated by commas or white space; "-" is standard
    /// input. If there is no such file and the argument contains white space, it is the prompt as text
    #[arg(default_value = "-", value_name = "FILE|TEXT")]
    pub(crate) file: PathBuf,
    /// The prompt as text, for a model with a tokenizer
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["file", "chat", "hashes", "tenant", "multimodal", "extra_keys"])]
    pub(crate) prompt: Option<String>,
    /// A file with a chat, for a model with a tokenizer: a JSON list of messages, or the body of a
    /// /v1/chat/completions request; "-" is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "hashes", "tenant", "multimodal", "extra_keys"])]
    pub(crate) chat: Option<PathBuf>,
    /// The model
    #[arg(long)]
    pub(crate) model: String,
    /// Look up a route for this tenant, in inference-cache's protocol
    #[arg(long, value_name = "NAME", requires = "scheme", conflicts_with_all = ["lora_name", "lora_id", "cache_salt", "multimodal", "extra_keys", "groups", "limit", "min_tokens", "all"])]
    pub(crate) tenant: Option<String>,
    /// Hash scheme of the replicas, for example vllm or sglang
    #[arg(long, value_name = "NAME", requires = "tenant")]
    pub(crate) scheme: Option<String>,
    /// Adapter under which replicas report the prompt
    #[arg(long, value_name = "NAME", requires = "tenant")]
    pub(crate) adapter: Option<String>,
    /// LoRA adapter of the prompt
    #[arg(long, value_name = "NAME", conflicts_with = "hashes")]
    pub(crate) lora_name: Option<String>,
    /// Number of the LoRA adapter, for engines that do not announce names
    #[arg(long, value_name = "N", conflicts_with = "hashes")]
    pub(crate) lora_id: Option<i64>,
    /// Cache salt of the prompt
    #[arg(long, value_name = "SALT", conflicts_with = "hashes")]
    pub(crate) cache_salt: Option<String>,
    /// An image or other item in the prompt: its id, the position of its first token, its length in tokens;
    /// repeatable, in order
    #[arg(long, value_name = "ID:OFFSET:LENGTH", conflicts_with = "hashes")]
    pub(crate) multimodal: Vec<Item>,
    /// Extra keys of each block as vLLM announces them: JSON, a list per block or null
    #[arg(long, value_name = "FILE", requires = "block_size", conflicts_with_all = ["hashes", "multimodal"])]
    pub(crate) extra_keys: Option<PathBuf>,
    /// Read content hashes of blocks instead of token ids
    #[arg(long, requires = "block_size")]
    pub(crate) hashes: bool,
    /// Tokens per block of the hashes or the extra keys; with --tenant the tokens are hashed locally and not
    /// sent
    #[arg(long, value_name = "N")]
    pub(crate) block_size: Option<u32>,
    /// Hashes are prefix hashes: each covers the whole prefix up to its block
    #[arg(long, requires = "hashes")]
    pub(crate) chained: bool,
    /// Also show the prefix that each cache group could reuse
    #[arg(long)]
    pub(crate) groups: bool,
    #[command(flatten)]
    pub(crate) listing: ListingArgs,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = TableOutput::Table)]
    pub(crate) output: TableOutput,
}

/// Which streams an answer lists.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct ListingArgs {
    /// List at most this many holders [default: 32]
    #[arg(long, value_name = "STREAMS")]
    pub(crate) limit: Option<u32>,
    /// List only streams that hold at least this many tokens
    #[arg(long, value_name = "TOKENS")]
    pub(crate) min_tokens: Option<u64>,
    /// List every stream, including those that hold nothing
    #[arg(long, conflicts_with_all = ["limit", "min_tokens"])]
    pub(crate) all: bool,
}

/// An item in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Item {
    id: String,
    offset: u64,
    length: u64,
}

impl FromStr for Item {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Identities may have colons themselves.
        let mut parts = text.rsplitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        let (length, offset) = (number(), number());
        match (parts.next(), offset, length) {
            (Some(id), Some(offset), Some(length)) => Ok(Self { id: id.to_owned(), offset, length }),
            _ => Err("an item is ID:OFFSET:LENGTH, for example image-1:3:200"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_has_an_identity_of_any_form() {
        let item = |id: &str, offset, length| Ok(Item { id: id.to_owned(), offset, length });
        assert_eq!("image-1:3:200".parse(), item("image-1", 3, 200));
        assert_eq!("sha256:ff:0:1".parse(), item("sha256:ff", 0, 1));
        for wrong in ["", "image", "image:3", "image:3:", "image:-1:2", "image:3:x"] {
            assert!(wrong.parse::<Item>().is_err(), "{wrong}");
        }
    }
}
