//! Says which commit is built: `KVPLANE_COMMIT` where a packager sets it, otherwise what git has checked out,
//! otherwise `unknown`. Only this crate is built anew after a commit.

#[path = "build/commit.rs"]
mod commit;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-env-changed=KVPLANE_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/commit.rs");
    let given = std::env::var_os("KVPLANE_COMMIT").and_then(|given| given.into_string().ok());
    let name = if let Some(given) = given.as_deref().and_then(commit::clean) {
        given.to_owned()
    } else {
        let checkout = commit::find(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        for file in &checkout.watched {
            println!("cargo::rerun-if-changed={}", file.display());
        }
        checkout.commit.unwrap_or_else(|| "unknown".to_owned())
    };
    println!("cargo::rustc-env=KVPLANE_COMMIT={name}");
}
