use std::fs;
use std::path::{Path, PathBuf};

use super::commit::{Checkout, clean, find};

const HASH: &str = "2634f39b0c1d2e3f405162738495a6b7c8d9eaf0";
const OTHER: &str = "ffffffffffffffffffffffffffffffffffffffff";

/// A directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvplane-commit-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn commit(root: &Path) -> Option<String> {
    find(root).commit
}

#[test]
fn a_branch_is_read_from_its_ref_and_watched() {
    let directory = Directory::new("loose");
    let head = directory.write(".git/HEAD", "ref: refs/heads/main\n");
    let log = directory.write(".git/logs/HEAD", "a line\n");
    let branch = directory.write(".git/refs/heads/main", &format!("{HASH}\n"));
    // A packed ref is older than the loose one.
    let packed = directory.write(".git/packed-refs", &format!("{OTHER} refs/heads/main\n"));
    let expected = Checkout { commit: Some("2634f39".to_owned()), watched: vec![head, log, branch, packed] };
    assert_eq!(find(&directory.0), expected);
}

#[test]
fn a_packed_ref_is_found_by_its_whole_name() {
    let directory = Directory::new("packed");
    directory.write(".git/HEAD", "ref: refs/heads/main\n");
    let refs = format!(
        "# pack-refs with: peeled fully-peeled sorted\n{OTHER} refs/heads/xrefs/heads/main\n\
         {OTHER} refs/heads/domain\n{HASH} refs/heads/main\n^{OTHER}\n"
    );
    directory.write(".git/packed-refs", &refs);
    assert_eq!(commit(&directory.0).as_deref(), Some("2634f39"));
}

#[test]
fn a_detached_head_names_the_commit_itself() {
    let directory = Directory::new("detached");
    directory.write(".git/HEAD", &format!("{HASH}\n"));
    assert_eq!(commit(&directory.0).as_deref(), Some("2634f39"));
}

#[test]
fn a_worktree_has_its_own_head_and_shares_refs() {
    let directory = Directory::new("worktree");
    directory.write("main/.git/HEAD", &format!("{OTHER}\n"));
    directory.write("main/.git/refs/heads/topic", &format!("{HASH}\n"));
    directory.write("main/.git/worktrees/tree/HEAD", "ref: refs/heads/topic\n");
    directory.write("main/.git/worktrees/tree/commondir", "../..\n");
    let absolute = directory.0.join("main/.git/worktrees/tree");
    directory.write("tree/.git", &format!("gitdir: {}\n", absolute.display()));
    assert_eq!(commit(&directory.0.join("tree")).as_deref(), Some("2634f39"));
    directory.write("tree/.git", "gitdir: ../main/.git/worktrees/tree\n");
    assert_eq!(commit(&directory.0.join("tree")).as_deref(), Some("2634f39"));
}

#[test]
fn what_cannot_be_determined_is_unknown() {
    let directory = Directory::new("unknown");
    assert_eq!(find(&directory.0), Checkout::default(), "an archive of the sources");
    directory.write(".git", "no gitdir\n");
    assert_eq!(commit(&directory.0), None);
    fs::remove_file(directory.0.join(".git")).unwrap();
    directory.write(".git/HEAD", "ref: refs/heads/unborn\n");
    assert_eq!(commit(&directory.0), None, "nothing was committed yet");
    directory.write(".git/HEAD", "not a hash\n");
    assert_eq!(commit(&directory.0), None);
}

#[test]
fn a_packager_names_the_commit_in_words_that_fit_a_label() {
    assert_eq!(clean(" v1.2-3_deb+1\n"), Some("v1.2-3_deb+1"));
    for refused in ["", " ", "a b", "a\"b", "a\nb", "é", "x".repeat(65).as_str()] {
        assert_eq!(clean(refused), None, "{refused:?}");
    }
}

#[test]
fn the_version_names_both() {
    assert_eq!(super::VERSION, format!("{} ({})", env!("CARGO_PKG_VERSION"), super::COMMIT));
    assert_eq!(clean(super::COMMIT), Some(super::COMMIT));
}
