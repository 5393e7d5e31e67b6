//! The commit that a directory has checked out, read from git's own files: there need be no git to build.
//!
//! ```text
//! .git/HEAD                a hash, or "ref: refs/heads/main"
//! .git/refs/heads/main     a hash; missing where refs are packed
//! .git/packed-refs         lines "HASH refs/heads/main"
//! .git                     in a worktree a file, "gitdir: …/.git/worktrees/NAME"; commondir in there says where refs are
//! ```

use std::fs;
use std::path::{Path, PathBuf};

/// Digits of a hash that are shown.
const SHOWN: usize = 7;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkout {
    /// The commit, shortened. `None` where it is unknown: in an archive of the sources, for example.
    pub(crate) commit: Option<String>,
    /// Files that change when another commit is checked out.
    pub(crate) watched: Vec<PathBuf>,
}

/// A name for a commit that can stand in a label and in a line, as it was given.
pub(crate) fn clean(given: &str) -> Option<&str> {
    let given = given.trim();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte);
    (!given.is_empty() && given.len() <= 64 && given.bytes().all(fits)).then_some(given)
}

/// The commit of a checkout.
pub(crate) fn find(root: &Path) -> Checkout {
    let mut checkout = Checkout::default();
    let Some(git) = git_directory(&root.join(".git")) else { return checkout };
    let common = match read(&git.join("commondir")) {
        Some(common) => git.join(common),
        None => git.clone(),
    };
    let head = git.join("HEAD");
    let Some(text) = read(&head) else { return checkout };
    // Cargo takes a file that is missing for one that changed: only those are watched that are there.
    let mut watch = |file: PathBuf| {
        if file.is_file() {
            checkout.watched.push(file);
        }
    };
    watch(head);
    // Every commit writes a line there, also where its ref was packed until now.
    watch(git.join("logs/HEAD"));
    let hash = match text.strip_prefix("ref: ") {
        None => Some(text),
        Some(name) => {
            watch(common.join(name));
            watch(common.join("packed-refs"));
            read(&common.join(name)).or_else(|| packed(&common, name))
        }
    };
    checkout.commit = hash.and_then(|hash| shortened(&hash));
    checkout
}

/// Where git keeps a checkout's HEAD.
fn git_directory(git: &Path) -> Option<PathBuf> {
    if git.is_dir() {
        return Some(git.to_owned());
    }
    let text = read(git)?;
    let named = text.strip_prefix("gitdir: ")?;
    // Relative to the file that says so.
    Some(git.parent()?.join(named))
}

fn packed(common: &Path, name: &str) -> Option<String> {
    let refs = fs::read_to_string(common.join("packed-refs")).ok()?;
    refs.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned))
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

fn shortened(hash: &str) -> Option<String> {
    let is_hash = hash.len() >= 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| hash[..SHOWN].to_owned())
}
