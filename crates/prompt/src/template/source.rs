//! A template's source, as Jinja would read it.

use minijinja::Error;
use minijinja::syntax::SyntaxConfig;

/// The syntax that chat templates are written in.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// One kind of line end, and `{% generation %}` as a block with a scope of its own: it marks the assistant's
/// tokens for training and prints what is in it.
pub(super) fn normalized(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        out.push_str(&rest[..at]);
        let tag = &rest[at..];
        if let Some((replacement, length)) = generation(tag) {
            out.push_str(&replacement);
            rest = &tag[length..];
        } else {
            out.push_str("{%");
            rest = &tag[2..];
        }
    }
    out.push_str(rest);
    out
}

/// What stands for a `{% generation %}` or its end, and how long that is.
fn generation(tag: &str) -> Option<(String, usize)> {
    let end = tag.find("%}")?;
    let inner = tag.get(2..end)?;
    let (before, inner) = match inner.strip_prefix(['-', '+']) {
        Some(rest) => (&tag[2..3], rest),
        None => ("", inner),
    };
    let (inner, after) = match inner.strip_suffix(['-', '+']) {
        Some(rest) => (rest, &tag[end - 1..end]),
        None => (inner, ""),
    };
    let word = match inner.trim() {
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return None,
    };
    Some((format!("{{%{before} {word} {after}%}}"), end + 2))
}
